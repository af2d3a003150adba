"""Complex layers are judged by real and imaginary part: oracle, bounds and violation texts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from handmade import right
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ddp_invariants.cases import numbers as draws
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import Layer, Model
from ddp_invariants.cases.program import Data, Optimizer
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.compare import apart, outside, parted
from ddp_invariants.invariants.diagnosis.reduced_gradient import ReducedGradient
from ddp_invariants.invariants.diagnosis.reductions import predictions
from ddp_invariants.invariants.rule import Tally
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.oracle import balls, complexes, training
from ddp_invariants.oracle.balls import Ball, exactly
from ddp_invariants.processes.pool import Pool
from ddp_invariants.ranks.groups.simulated.refusals import sends
from ddp_invariants.ranks.training.model import Replica, loss_of
from ddp_invariants.records.evidence import Layout, Slot, Tensors
from ddp_invariants.situations.clipping import Clipping

f32 = np.float32
ELEMENTS = st.floats(-100, 100, width=32, allow_subnormal=False)
LINEAR = st.builds(
    Layer,
    st.just("linear"),
    st.sampled_from((1, 2, 3)),
    bias=st.booleans(),
    dtype=st.just("complex64"),
    layout=st.sampled_from(("contiguous", "transposed", "strided")),
)
LAYERS = st.lists(
    LINEAR
    | st.sampled_from((Layer("scale", dtype="complex64"), Layer("linear", 2, dtype="float64"))),
    min_size=1,
    max_size=4,
).filter(lambda layers: any(layer.complex for layer in layers))


def numbers(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's numbers as the evidence gives them."""
    tensor = tensor.detach()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().numpy()


@settings(max_examples=60, deadline=None)
@given(layers=LAYERS, inputs=st.sampled_from((1, 2, 4)), seed=st.integers(0, 1000))
def test_a_gradient_is_autograds_in_complex128(layers: list[Layer], inputs: int, seed: int) -> None:
    """The oracle's complex gradients equal autograd's in complex128, by part.

    The test covers weights, biases and factors, whatever layer comes before and after.
    """
    case = TrainingCase(
        model=Model(inputs, tuple(layers)),
        data=Data(samples=4, batch_size=2),
        values="real",
        seed=seed,
    )
    replica = Replica(case.model, draws.parameters(case, 0, case.model.numbers))
    for parameter in replica.parameters():
        parameter.data = parameter.data.to(
            torch.complex128 if parameter.is_complex() else torch.float64
        )
    batch = training.batches(case)[0]
    gradients = training.gradients(
        case, {name: numbers(p) for name, p in replica.named_parameters()}, batch
    )
    for rank in range(case.world_size):
        replica.zero_grad()
        loss_of(
            "tagged",
            replica(torch.from_numpy(batch.inputs_WBI[rank])),
            torch.from_numpy(batch.targets_WBO[rank]),
            torch.from_numpy(batch.tags_WB[rank]),
        ).backward()
        for name, parameter in replica.named_parameters():
            assert parameter.grad is not None
            expected = numbers(parameter.grad).ravel()
            error = np.abs(gradients.by_name[name].centre[rank].ravel() - expected)
            assert (error <= 1e-12 * (1 + np.abs(expected).max(initial=0.0))).all(), name


def test_gaussian_integers_make_a_whole_step_exact() -> None:
    """On small Gaussian integers every radius is 0, so the last bit of each part is judged."""
    case = TrainingCase(
        model=Model(
            2, (Layer("linear", 3, bias=True, dtype="complex64"), Layer("scale", dtype="complex64"))
        ),
        data=Data(samples=4, batch_size=2),
        values="integer",
    )
    replica = Replica(case.model, draws.parameters(case, 0, case.model.numbers))
    gradients = training.gradients(
        case,
        {name: numbers(p) for name, p in replica.named_parameters()},
        training.batches(case)[0],
    )
    assert all((ball.radius == 0).all() for ball in gradients.by_name.values())


def inside(values: np.ndarray, ball: Ball) -> bool:
    """Return True if all computed values lie in a ball."""
    return bool(
        (
            np.abs(values.astype(np.float64).reshape(ball.centre.shape) - ball.centre)
            <= ball.radius
        ).all()
    )


@given(st.data())
def test_any_order_of_a_complex_product_lies_inside(data: st.DataObject) -> None:
    """Products of parts in float32, added in any order with the bias, lie inside the ball.

    A complex scale lies inside as well.
    """
    width = data.draw(st.integers(1, 4))
    x = data.draw(npst.arrays(f32, (1, 2, width), elements=ELEMENTS))
    weight = data.draw(npst.arrays(f32, (3, width, 2), elements=ELEMENTS))
    bias = data.draw(npst.arrays(f32, (3, 2), elements=ELEMENTS))
    turned = x[..., ::-1]
    order = data.draw(st.permutations(range(2 * width + 1)))
    parts = []
    for part, sign in ((0, -1), (1, 1)):
        terms = [
            *(weight[:, k, part] * x[..., k, None] for k in range(width)),
            *(f32(sign) * weight[:, k, 1 - part] * turned[..., k, None] for k in range(width)),
            np.broadcast_to(bias[:, part], (1, 2, 3)),
        ]
        total = np.zeros((1, 2, 3), f32)
        for k in order:
            total = total + terms[k]
        parts.append(total)
    exact, numbers_of = exactly(x.astype(float)), exactly(weight.reshape(3, -1).astype(float))
    ball = complexes.linear(exact, numbers_of, exactly(bias.astype(float)), "complex64")
    assert inside(parts[0] + f32(2) * parts[1], ball)
    factor = weight[0, 0]
    ball = complexes.scale(exact, exactly(factor.astype(float)), "complex64")
    real, imaginary = factor[0] * x - factor[1] * turned, factor[1] * x + factor[0] * turned
    assert inside(real + f32(2) * imaginary, ball)


@settings(deadline=None)
@given(st.integers(1, 6), st.data())
def test_every_way_of_averaging_complex_numbers_lies_within_the_bound(
    world_size: int, data: st.DataObject
) -> None:
    """Every way to average complex numbers lies within the bound, at any magnitude.

    The ways are torch's complex division, a multiplication by the reciprocal, and a division of
    each part.
    """
    g_WP = data.draw(
        npst.arrays(f32, (world_size, 8), elements=st.floats(-(2.0**100), 2.0**100, width=32))
    )
    whole = [torch.view_as_complex(torch.from_numpy(row.copy()).reshape(4, 2)) for row in g_WP]
    exact = g_WP.astype(np.float64)
    form = balls.format_of(Layout((Slot("weight", "complex64", (4,)),)))
    mean = balls.mean_over_ranks(
        exact,
        0 * exact,
        np.abs(exact),
        balls.quantum_of(exact).min(0),
        form,
        1 + balls.COMPLEX_DIVISION * np.ones(8, int),
    )
    total = torch.stack(whole).sum(0)
    for held in (
        total / world_size,
        total * (1 / world_size),
        torch.view_as_complex(torch.view_as_real(total) / world_size),
        torch.stack([gradient / world_size for gradient in whole]).sum(0),
    ):
        assert inside(numbers(held), mean)


def test_half_of_a_complex_sum_need_not_be_exact() -> None:
    """A complex division by a power of two may round: torch 2.6 gives this half of this sum."""
    sums_P = np.array([-7396539.0, 4.0, -7396539.0])
    form = balls.format_of(
        Layout((Slot("weight", "complex64", (1,)), Slot("bias", "float32", (1,))))
    )
    roundings_P = 1 + balls.COMPLEX_DIVISION * np.array([1, 1, 0])
    g_WP = np.stack([sums_P, 0 * sums_P])
    mean = balls.mean_over_ranks(g_WP, 0 * g_WP, np.abs(g_WP), np.ones(3), form, roundings_P)
    assert inside(np.array([-3698269.25, 2.0, -3698269.5]), mean)
    assert not inside(np.array([-3698269.5, 2.0, -3698269.25]), mean)


def test_what_overflows_in_one_part_is_known_in_neither() -> None:
    """An overflow in one part makes both parts unknown, because infinity times zero is NaN.

    The zero is the imaginary part of a real divisor. Neighbouring elements stay known.
    """
    g_WP = np.array([[1.0, 3e38, 1.0, 1.0]] * 2)
    slots = (
        Slot("factor", "float32", ()),
        Slot("weight", "complex64", (1,)),
        Slot("other", "float32", ()),
    )
    form = balls.format_of(Layout(slots))
    mean = balls.mean_over_ranks(g_WP, 0 * g_WP, g_WP, np.ones(4), form, 1)
    assert np.isfinite(mean.radius).tolist() == [True, False, False, True]
    sums = torch.complex(torch.tensor([float("inf")]), torch.tensor([2.0]))
    assert torch.view_as_real(sums / 2).isnan().any()  # torch makes both parts unknown.


WEIGHT = Slot("weight", "complex64", (1, 2))


def noted(*values: complex) -> Tensors:
    """Return a record of one complex tensor between two real ones."""
    layout = Layout((Slot("factor", "float32", ()), WEIGHT, Slot("bias", "float64", (1,))))
    return Tensors(
        layout,
        f32(7).tobytes() + np.array(values, np.complex64).tobytes() + np.float64(9).tobytes(),
    )


def test_evidence_of_complex_numbers_is_that_of_their_parts() -> None:
    """Complex evidence keeps a tensor's bytes and shape, and compares its parts bitwise.

    Each part is a number with a place of its own, such as `(0, 1).imag`.
    """
    record = noted(1 + 2j, 3 + 4j)
    assert record.layout.nbytes == len(record.bits) == 4 + 16 + 8
    assert record.values_P.tolist() == [7, 1, 2, 3, 4, 9]
    assert record.by_name["weight"].tolist() == [[[1, 2], [3, 4]]]
    assert [record.layout.locate(number)[1] for number in range(6)] == [
        "()",
        "(0, 0).real",
        "(0, 0).imag",
        "(0, 1).real",
        "(0, 1).imag",
        "(0,)",
    ]
    different = parted(record, noted(1 + 2j, 3 + 5j), "rank 0 holds")
    assert different is not None
    assert different.place == "parameter 'weight' (1, 2)"
    assert different.words == "5 at (0, 1).imag, rank 0 holds 4; 1 of 4 parts differ"
    outlier = outside(record, np.array([7.0, 1, 2, 3, 4.5, 9]), exactly(record.values_P), Tally())
    assert outlier is not None
    assert outlier.words.startswith("4.5 at (0, 1).imag, expected 4; 1 of 4 parts differ")


def test_zeros_of_either_sign_are_equal_values_and_different_bits() -> None:
    """`parted` compares bits. `apart` takes -0 for 0, in floats alone, and tells all else."""
    positive, negative = noted(0, complex(3, 0)), noted(0, complex(3, -0.0))
    assert parted(positive, negative, "rank 0 holds") is not None
    assert apart(positive, negative, "rank 0 holds") is None
    assert apart(positive, noted(0, complex(3, 1e-45)), "rank 0 holds") is not None
    layout = Layout((Slot("count", "int64", (1,)),))
    zero, least = (Tensors(layout, np.int64(count).tobytes()) for count in (0, -(2**63)))
    different = apart(zero, least, "rank 0 holds")
    assert different is not None
    assert different.words.startswith(f"{-(2**63)} at (0,), rank 0 holds 0")


KINDS = [
    ("imaginary zero", lambda g: g.mean(0) * [1, 0]),
    ("real zero", lambda g: g.mean(0) * [0, 1]),
    ("imaginary not reduced", lambda g: np.where([True, False], g.mean(0), g)),
    ("imaginary divided", lambda g: np.where([True, False], g.mean(0), g / 2)),
    ("conjugated", lambda g: g.mean(0) * [1, -1]),
    ("reordered", lambda g: g.mean(0)[..., ::-1]),
    ("reordered", lambda g: np.moveaxis(g.mean(0), -1, 0).reshape(2, 2)),
]


@pytest.mark.parametrize(("kind", "held"), KINDS, ids=[kind for kind, _ in KINDS])
def test_what_became_of_the_parts_is_named_and_a_near_miss_is_not(kind: str, held: object) -> None:
    """A wrong reduction of the parts is named, and a near miss is not.

    If one part of the held values moves by a hundredth, no prediction fits any more.
    """
    assert callable(held)
    g_W = np.array([[[1.0, 2.0], [3.0, -5.0]], [[2.5, -1.0], [-0.5, 8.0]]])

    def named(held_W: np.ndarray) -> set[str]:
        gradient = ReducedGradient(
            EvidenceView(right()),
            0,
            "layers.0.weight",
            held_W,
            g_W[None],
            np.zeros_like(g_W),
            None,
            2.0**-24,
            complex=True,
        )
        return {
            prediction.kind for prediction in predictions(gradient) if gradient.fits(prediction)
        }

    held_W = np.array(np.broadcast_to(held(g_W), g_W.shape))
    assert named(held_W) == {kind}
    held_W[:, 1, 1] += 0.01
    assert named(held_W) == set()


CASE = TrainingCase(
    model=Model(4, tuple(Layer("linear", 4, dtype="complex64") for _ in range(3))),
    world_size=2,
    steps=3,
    bucket_cap=128,
    data=Data(samples=12, batch_size=2),
    optimizer=Optimizer(log2_lr=-10),
)


@pytest.fixture(params=["reference", "torch"])
def ddp(request: pytest.FixtureRequest) -> str:
    """Return the name of a DDP that trains complex parameters; torch 2.6's cannot send them."""
    if request.param == "torch" and not sends("broadcast", torch.complex64):
        pytest.skip("gloo broadcasts no complex numbers")
    return str(request.param)


def test_a_wholly_complex_model_is_judged_by_bytes_too(pool: Pool, ddp: str) -> None:
    """Complex gradients are judged by bytes, whether they travel as complex numbers or as parts.

    Each gradient fills one bucket, and the bytes are those of one ring all-reduce.
    """
    findings = judge(pool.train(CASE, Ddp(ddp)))
    assert [rule for rule, finding in findings.items() if finding.failure is not None] == []
    assert findings["COMM-4"].compared
    assert "several buckets" in findings["COMM-4"].met
    assert findings["GRAD-10"].met >= {"a complex gradient"}
    assert 1.0 <= min(findings["COMM-6"].observed) <= 1.2


def test_whatever_else_happens_with_complex_parameters_is_judged_right(
    pool: Pool, ddp: str
) -> None:
    """A right wrapper of complex parameters violates no rule in combination with other features.

    The features are tied, recomputed, reused and strided layers, accumulation, clipping, other
    dtypes, and optimizers with a state.
    """
    layer = Layer("linear", 4, dtype="complex64")
    layers = (
        Layer("linear", 4, bias=True),
        layer,
        replace(layer, layout="strided", checkpoint="plain", bias=True),
        replace(layer, tied=1),
        replace(layer, twice=True),
        Layer("scale", dtype="complex64"),
        Layer("linear", 2, dtype="float64"),
    )
    for optimizer in (
        Optimizer("adamw", weight_decay=0.25),
        Optimizer(momentum=0.5, nesterov=True, weight_decay=0.25),
        Optimizer("adam", weight_decay=0.25, kernels="foreach"),
        Optimizer("adam", beta_1=0.5, beta_2=0.25, amsgrad=True, maximize=True),
    ):
        case = TrainingCase(
            model=Model(4, layers),
            world_size=3,
            steps=3,
            accumulation=2,
            data=Data(samples=12, batch_size=2),
            values="real",
            situations=(Clipping(0.0625),),
            optimizer=optimizer,
        )
        findings = judge(pool.train(case, Ddp(ddp)))
        assert [
            (rule, finding.failure)
            for rule, finding in findings.items()
            if finding.failure is not None
        ] == []
        assert findings["PARAM-3"].compared
        assert findings["GRAD-8"].compared


def test_what_overflows_when_it_is_doubled_is_unknown_and_what_it_meets_too() -> None:
    """A gradient that overflows when doubled is unknown, as is everything it is multiplied with.

    The imaginary part of the incoming gradient is twice its real part. Infinity times an input of
    zero is NaN.
    """
    large, nothing, weight = (
        exactly(np.full((1, 1, 1), 2.0**127)),
        exactly(np.zeros((1, 1, 1))),
        exactly(np.ones((1, 2))),
    )
    with np.errstate(invalid="ignore"):  # As in the judging of rules.
        of_input, of_weight, of_bias = complexes.linear_back(large, nothing, weight, "complex64")
    assert np.isinf(of_weight.radius).all()
    assert np.isinf(of_input.radius).all()
    assert np.isinf(of_bias.radius[..., 1]).all()
    smaller = complexes.linear_back(
        exactly(np.full((1, 1, 1), 2.0**100)), nothing, weight, "complex64"
    )
    assert all((ball.radius == 0).all() for ball in smaller[1:])


def test_what_a_complex_layer_passes_back_is_added_up_before_it_is_cast(pool: Pool) -> None:
    """A complex layer adds up the gradient of its input before it casts that gradient.

    Two parts that cancel lose less precision that way. In the other order, the gradient of a
    bfloat16 layer below exceeded its bound.
    """
    model = Model(8, (Layer("linear", 4, dtype="bfloat16"), Layer("linear", 4, dtype="complex64")))
    case = TrainingCase(model=model, world_size=2, data=Data(samples=2), values="integer")
    for seed in (4, 15, 28, 31, 72, 75):
        finding = judge(pool.train(replace(case, seed=seed), Ddp()))["GRAD-3"]
        assert finding.failure is None
        assert finding.compared
