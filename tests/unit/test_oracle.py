"""The oracle agrees with torch in float64, and encloses torch's results in every dtype.

The oracle shares no code with torch.
"""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase, Values
from ddp_invariants.cases.dtypes import DTYPES, LOW_PRECISION, Dtype
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.oracle import balls, training
from ddp_invariants.oracle.balls import Ball, exactly
from ddp_invariants.oracle.optimizer import Optimization
from ddp_invariants.ranks.training.model import Replica, loss_of
from ddp_invariants.ranks.training.warm_up import optimizer_plan
from ddp_invariants.search.strategies import training_cases
from ddp_invariants.situations.autocast import Autocast
from ddp_invariants.situations.faint_loss import FaintLoss
from ddp_invariants.situations.gradient_hooks import GradientHooks
from ddp_invariants.situations.penalty import Penalty
from ddp_invariants.situations.unused import unreached


def penalised(case: TrainingCase) -> TrainingCase:
    """Return the case with a penalty on parameters, one of which only the loss uses."""
    case = Penalty("weights").fitted_or_left_out(case)
    if case.penalty != "weights":
        return case
    layers = (*case.model.layers, Layer("loss_only"))
    return replace(case, model=replace(case.model, layers=layers))


CASES = (
    training_cases(Scope())
    | training_cases(Scope(), unused=True)
    | training_cases(Scope(), crossed=True)
    | training_cases(Scope(), odd=True)
    | training_cases(Scope(), autocast=1)
    | training_cases(Scope(), drawing=True)
    | training_cases(Scope(), buffers=True)
    | training_cases(Scope()).map(Penalty("weights").fitted_or_left_out)
    | training_cases(Scope()).map(penalised)
    | training_cases(Scope()).map(FaintLoss(-60).fitted_or_left_out)
)


def torch_gradients(
    case: TrainingCase, replica: Replica, batch: training.Batch
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return each rank's loss, and torch's local gradients stacked over the ranks."""
    losses: list[float] = []
    rows: dict[str, list[np.ndarray]] = {}
    for rank in range(case.world_size):
        inputs = torch.from_numpy(batch.inputs_WBI[rank])
        inputs = inputs if case.model.layers[0].dtype == "float64" else inputs.float()
        replica.zero_grad()
        for layer in replica.stack if case.crossed is not None else ():
            layer.crossed = case.crossed == rank
        replica.passed_by = case.passed_by(rank, 0, 0)
        inputs.requires_grad_(unreached(case))
        for layer, factors in zip(replica.drawing, batch.drawn.values(), strict=True):
            layer.given = torch.from_numpy(factors[rank])
        targets, tags = (
            torch.from_numpy(batch.targets_WBO[rank]),
            torch.from_numpy(batch.tags_WB[rank]),
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
            outputs = replica(inputs)
        loss = loss_of(case.loss, outputs, targets, tags)
        if case.penalty == "weights":
            squares = [
                (torch.view_as_real(p) if p.is_complex() else p).double().square().sum()
                for p in replica.parameters()
                if p.requires_grad
            ]
            loss = loss + sum(squares) * targets[0, 0] / 2
        faint = case.get(FaintLoss)
        (loss / case.accumulation * 2.0 ** (faint.log2 if faint is not None else 0)).backward()
        losses.append(float(loss.detach()))
        for name, parameter in replica.named_parameters():
            if parameter.requires_grad:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                kept = _numbers(gradient.detach().to_dense())
                hooked = case.get(GradientHooks) is not None
                rows.setdefault(name, []).append(-kept if hooked else kept.copy())
    return losses, {name: np.stack(values) for name, values in rows.items()}


def first_batch(case: TrainingCase) -> training.Batch:
    """Return every rank's first samples, with the random factors that its layers draw."""
    batch = training.batches(case)[0]
    widths, ranks_and_samples = case.model.widths(), batch.inputs_WBI.shape[:2]
    shapes = {index: (*ranks_and_samples, widths[index]) for index in case.model.draws}
    drawn = {
        index: np.where(
            numbers.numbers(case, f"drawn/{index}", int(np.prod(shape))).reshape(shape) > 0,
            2.0,
            0.0,
        )
        for index, shape in shapes.items()
    }
    return replace(batch, drawn=drawn)


def held_by(replica: Replica) -> dict[str, np.ndarray]:
    """Return a module's parameters as the evidence gives them."""
    return {name: _numbers(p.detach()) for name, p in replica.named_parameters()}


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().numpy()


def enclosed(values: np.ndarray, ball: Ball) -> bool:
    """Return True if all values lie in a ball; infinite radii are ignored."""
    return bool(
        (np.abs(values.reshape(ball.centre.shape) - ball.centre) <= ball.radius)[
            np.isfinite(ball.radius)
        ].all()
    )


@settings(max_examples=300, deadline=None)
@given(CASES)
def test_the_oracle_encloses_torchs_forward_and_backward(case: TrainingCase) -> None:
    """Losses and local gradients of every kind of model lie inside the oracle's balls.

    The dtypes are float32, float64, bfloat16, float16 and complex64.
    """
    replica = Replica(case.model, numbers.parameters(case, 0, case.model.numbers))
    batch = first_batch(case)
    with np.errstate(over="ignore", invalid="ignore"):  # As a judge: such bounds are not known.
        gradients = training.gradients(case, held_by(replica), batch)
    losses, local = torch_gradients(case, replica, batch)
    assert enclosed(np.array(losses), gradients.losses_W)
    assert local.keys() == gradients.by_name.keys()
    for name, values in local.items():
        assert enclosed(values, gradients.by_name[name]), name


@settings(max_examples=100, deadline=None)
@given(CASES)
def test_in_float64_the_oracle_is_torch_but_for_the_last_bits(case: TrainingCase) -> None:
    """In float64, the centres equal torch's gradients up to a few units in the last place."""
    layers = tuple(replace(layer, dtype="float64") for layer in case.model.layers)
    case = replace(case, model=replace(case.model, layers=layers))
    replica = Replica(case.model, numbers.parameters(case, 0, case.model.numbers))
    batch = first_batch(case)
    gradients = training.gradients(case, held_by(replica), batch)
    _, local = torch_gradients(case, replica, batch)
    for name, values in local.items():
        scale = (
            np.abs(gradients.by_name[name].centre).max(initial=0)
            + gradients.by_name[name].radius.max(initial=0) * 2.0**40
        )
        sure = gradients.by_name[name].radius <= 1e-6 * (1 + np.abs(gradients.by_name[name].centre))
        assert (
            np.abs(values.reshape(sure.shape) - gradients.by_name[name].centre)[sure]
            <= 1e-12 * (1 + scale)
        ).all(), name


@settings(max_examples=150, deadline=None)
@given(CASES)
def test_the_oracle_encloses_torchs_optimizers(case: TrainingCase) -> None:
    """Every optimizer, in every implementation of its step, stays inside the oracle's balls.

    The steps are the case's, on given gradients. In some cases, one step has no gradient.
    """
    # 35 elements are more than one vector of any dtype. Fused kernels therefore run both their
    # vector loop and the remainder.
    shape, plan, size = (7, 5), case.optimizer, 35
    values = numbers.numbers(case, "optimizer", size * (case.steps + 1))
    for dtype in (
        ("float32", "float64")
        if plan.kernels == "fused" and plan.kind == "sgd"
        else ("float32", "float64", "bfloat16", "float16")
    ):
        parameter = torch.nn.Parameter(
            torch.from_numpy(values[:size].copy()).reshape(shape).to(getattr(torch, dtype))
        )
        kind, arguments = optimizer_plan(case)
        optimizer = kind([parameter], **arguments)
        optimization, form = Optimization(), balls.FORMATS[dtype]
        for step in range(case.steps):
            before = parameter.detach().double().numpy().ravel().copy()
            if not np.isfinite(before).all():
                break  # As below. No step is judged that starts from such values.
            given_ = (
                torch.from_numpy(values[size * (step + 1) : size * (step + 2)].copy())
                .reshape(shape)
                .to(parameter.dtype)
            )
            none = case.unused and step == case.seed % case.steps
            parameter.grad = None if none else given_
            gradient = given_.double().numpy().ravel().copy()
            optimizer.step()
            left_out = np.full(size, fill_value=True) if none else None
            start = Ball(before, 0 * before, balls.quantum_of(before))
            after = optimization.step(case.optimizer, start, exactly(gradient), form, left_out)
            assert enclosed(parameter.detach().double().numpy().ravel(), after)
            # Adam divides by zero where float16 does not keep a small gradient's square.
            known = np.isfinite(after.radius)
            assert known.all() or (dtype == "float16" and plan.kind != "sgd")


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_second_moment_that_overflowed_stays_infinite(amsgrad: bool) -> None:
    """No later step of that element is judged, although small gradients follow."""
    plan = Optimizer("adam", beta_1=0.5, beta_2=0.25, amsgrad=amsgrad)
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = torch.optim.Adam([parameter], **plan.arguments)
    optimization = Optimization()
    for step, large in enumerate((400.0, 1.0, 1.0, 1.0, 1.0, 1.0)):
        before = parameter.detach().double().numpy().copy()
        gradient = np.array([large, 1.0])
        parameter.grad = torch.from_numpy(gradient).half()
        optimizer.step()
        start = Ball(before, 0 * before, balls.quantum_of(before))
        after = optimization.step(plan, start, exactly(gradient), balls.FORMATS["float16"])
        assert enclosed(parameter.detach().double().numpy(), after)
        assert np.isinf(after.radius).tolist() == [True, False], step
    assert not optimizer.state[parameter]["exp_avg_sq"].isfinite().all()


def test_the_rows_of_dtypes_agree_with_torch() -> None:
    """The rows hold torch's own limits, and name every dtype that a layer may have."""
    for name, row in DTYPES.items():
        dtype = getattr(torch, name)
        assert row.bytes == dtype.itemsize
        assert bool(row.part) == dtype.is_complex
        assert bool(row.roundoff) == (dtype.is_floating_point or dtype.is_complex)
        if row.roundoff:
            limits = torch.finfo(dtype)
            assert (row.roundoff, row.largest) == (limits.eps / 2, limits.max)
            kept = limits.smallest_normal if name != "float16" else 2.0**-24
            assert row.smallest == kept
    assert {*LOW_PRECISION} < {*get_args(Dtype)} <= DTYPES.keys()


@pytest.mark.parametrize("values", ["integer", "real"])
@pytest.mark.parametrize("log2_scale", [0, 8, 13, -12])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_oracle_encloses_torchs_float16(
    values: Values, log2_scale: int, *, autocast: bool
) -> None:
    """Gradients of float16 weights lie inside the balls: small ones, large ones, and recast ones.

    Autocast casts each use of a weight to bfloat16, which has a larger range. All gradients of
    fractions are known; on the largest inputs some overflow.
    """
    layers = (
        Layer("linear", 4, bias=True),
        Layer("linear", 4, dtype="float16", twice=True),
        Layer("linear", 4, dtype="float16", tied=1, bias=True),
        Layer("linear", 2),
    )
    for seed in range(5):
        case = TrainingCase(
            model=Model(4, layers),
            data=Data(samples=12, batch_size=4),
            values=values,
            log2_scale=log2_scale,
            situations=(Autocast(),) if autocast else (),
            seed=seed,
        )
        replica = Replica(case.model, numbers.parameters(case, 0, case.model.numbers))
        batch = first_batch(case)
        with np.errstate(over="ignore", invalid="ignore"):
            gradients = training.gradients(case, held_by(replica), batch)
        _, local = torch_gradients(case, replica, batch)
        for name, gradient in local.items():
            assert enclosed(gradient, gradients.by_name[name]), name
        known = [np.isfinite(ball.radius).all() for ball in gradients.by_name.values()]
        assert all(known) or log2_scale > 0 or values == "integer"
        assert not all(known) or log2_scale < 13


def test_a_sum_that_may_overflow_float16_is_not_known() -> None:
    """A mean is known up to 65504, the largest number of float16, and the sum comes first."""
    half = balls.FORMATS["float16"]
    for most, known in ((32752.0, True), (32768.0, False)):
        local_WP = np.full((2, 1), most)
        mean = balls.mean_over_ranks(local_WP, 0 * local_WP, local_WP, most, half, 1)
        assert bool(np.isfinite(mean.radius).all()) is known


def test_integers_make_a_whole_step_exact() -> None:
    """On small integers every radius is 0, so that the last bit is judged."""
    case = TrainingCase(
        model=Model(2, (Layer("linear", 3, bias=True, activation="relu"), Layer("linear", 2))),
        data=Data(samples=4, batch_size=2),
        values="integer",
    )
    replica = Replica(case.model, numbers.parameters(case, 0, case.model.numbers))
    gradients = training.gradients(case, held_by(replica), training.batches(case)[0])
    assert all((ball.radius == 0).all() for ball in gradients.by_name.values())
