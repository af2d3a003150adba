"""The result of single-process training on the global batch, with bounds on the rounding.

Plain numpy computes it, so that no code under test, torch included, takes part. Every number is a
ball (balls.py).

Each step starts from the parameters that the ranks held when its forward started. A fault then
shows at the step it happens in, and radii do not grow over steps. The trajectory is right if the
start and every step are right.

Suffixes: W ranks, B batch, I and O widths in and out, P elements of all trainable parameters end to
end.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases import numbers
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.oracle.balls import (
    OWN_ROUNDOFF,
    Ball,
    FloatArray,
    cast,
    exactly,
    is_power_of_two,
    plus,
    summed,
    times,
)
from ddp_invariants.oracle.stack import Stack, nothing
from ddp_invariants.situations.faint_loss import FaintLoss
from ddp_invariants.situations.gradient_hooks import GradientHooks

__all__ = [
    "Batch",
    "Gradients",
    "batches",
    "gradients",
    "joined",
    "losses",
    "nothing",
    "outputs",
]


@dataclass(frozen=True)
class Batch:
    """Every rank's samples at one step.

    Attributes:
        inputs_WBI: Inputs.
        targets_WBO: Targets.
        tags_WB: Tags.
        indices: The samples' indices, per rank.
        passed_by: The layers that each rank's forward passes by; empty if none passes any.
        drawn: The factors that layers drew, (W, B, D) each, by the layer's index.
        running: The means and variances of BatchNorms in evaluation, (2, W, C) each, by the layer's
            index.
    """

    inputs_WBI: FloatArray
    targets_WBO: FloatArray
    tags_WB: FloatArray
    indices: list[NDArray[np.intp]]
    passed_by: tuple[frozenset[int], ...] = ()
    drawn: Mapping[int, FloatArray] = field(default_factory=dict)
    running: Mapping[int, FloatArray] = field(default_factory=dict)

    @property
    def passed_by_all(self) -> frozenset[int]:
        """The layers that every rank passes by, where the ranks do not differ."""
        return self.passed_by[0] if self.passed_by else frozenset()

    def of(self, ranks: list[int]) -> "Batch":
        """Return the samples of some ranks that pass the same layers by."""
        return Batch(
            self.inputs_WBI[ranks],
            self.targets_WBO[ranks],
            self.tags_WB[ranks],
            [self.indices[r] for r in ranks],
            (self.passed_by[ranks[0]],),
            {index: drawn_WBD[ranks] for index, drawn_WBD in self.drawn.items()},
            {index: running_2WC[:, ranks] for index, running_2WC in self.running.items()},
        )

    def alike(self) -> Iterator[tuple[list[int], "Batch"]]:
        """Yield groups of ranks that pass the same layers by, and their samples."""
        for passed_by in dict.fromkeys(self.passed_by):
            ranks = [rank for rank, layers in enumerate(self.passed_by) if layers == passed_by]
            yield ranks, self.of(ranks)


def batches(case: TrainingCase) -> list[Batch]:
    """Return the batches of all micro-steps, without poison."""
    dataset = numbers.Dataset(case)
    return [
        Batch(
            dataset.inputs_ND[np.stack(dealt)],
            dataset.targets_ND[np.stack(dealt)],
            dataset.tags_N[np.stack(dealt)],
            dealt,
            _passed_by(case, number),
        )
        for number, dealt in enumerate(numbers.batches(case))
    ]


def _passed_by(case: TrainingCase, number: int) -> tuple[frozenset[int], ...]:
    step, micro_step = divmod(number, case.accumulation)
    return (
        tuple(case.passed_by(rank, step, micro_step) for rank in range(case.world_size))
        if case.unused
        else ()
    )


def joined(parts: list[Batch]) -> Batch:
    """Return batches of equal size, of all ranks, as one batch of one rank."""

    def end_to_end(arrays: list[FloatArray]) -> FloatArray:
        return np.concatenate([array.reshape(-1, *array.shape[2:]) for array in arrays])[None]

    return Batch(
        end_to_end([part.inputs_WBI for part in parts]),
        end_to_end([part.targets_WBO for part in parts]),
        end_to_end([part.tags_WB for part in parts]),
        [np.concatenate([i for part in parts for i in part.indices])],
        drawn={
            index: end_to_end([part.drawn[index] for part in parts]) for index in parts[0].drawn
        },
    )


@dataclass(frozen=True)
class Gradients:
    """Every rank's right local gradients and losses at one step.

    Attributes:
        by_name: Per trainable parameter, its gradient on each rank: weights (W, O, I) however they
            are stored.
        losses_W: Each rank's loss, float64.
        entries: Of a sparse gradient, the magnitudes of the rows kept as a sum, added up.
    """

    by_name: Mapping[str, Ball]
    losses_W: Ball
    entries: Mapping[str, FloatArray] = field(default_factory=dict)


def gradients(
    case: TrainingCase, parameters: Mapping[str, FloatArray], batch: Batch, scale: float = 1.0
) -> Gradients:
    """Return the gradients of a forward and backward, for all ranks at once.

    Args:
        case: The case.
        parameters: Values at the start of the step, by full name, in the parameters' shapes.
        batch: Every rank's samples.
        scale: The factor of the loss before backward, a power of two. It rounds nothing by itself.
            The radii cover overflow, and numbers too small to be normal.
    """
    if len(set(batch.passed_by)) > 1:
        return _assembled(
            [(ranks, gradients(case, parameters, part, scale)) for ranks, part in batch.alike()]
        )
    faint = case.get(FaintLoss)
    scale *= 2.0**faint.log2 if faint is not None else 1.0
    model = Stack(case, parameters, batch.passed_by_all, batch.drawn, batch.running)
    outputs_WBO, dtype = model.forward(batch.inputs_WBI)
    losses_W, g = _head(case, outputs_WBO, batch, scale)
    model.backward(cast(g, "float64", dtype))
    if batch.passed_by:
        model.count_unused_as_zero(len(batch.inputs_WBI))
    if case.penalty == "weights":
        factor_W = exactly(batch.targets_WBO[:, 0, 0])
        squares = model.penalise(times(_micro_share(case, scale), factor_W, "float64"))
        halved_W = Ball(factor_W.centre / 2, factor_W.radius, factor_W.quantum / 2)
        losses_W = plus(losses_W, times(squares, halved_W, "float64"), "float64")
    by_name: Mapping[str, Ball] = model.gradients
    if case.get(GradientHooks) is not None:
        by_name = {
            name: Ball(-each.centre, each.radius, each.quantum) for name, each in by_name.items()
        }
    return Gradients(by_name, losses_W, model.magnitudes)


def _assembled(parts: list[tuple[list[int], Gradients]]) -> Gradients:
    """Return all ranks' gradients from those of some ranks at a time."""
    order = np.argsort([rank for ranks, _ in parts for rank in ranks])

    def joined(balls: list[Ball]) -> Ball:
        return Ball(
            np.concatenate([ball.centre for ball in balls])[order],
            np.concatenate([ball.radius for ball in balls])[order],
            min(float(ball.quantum) for ball in balls),
        )

    return Gradients(
        {name: joined([part.by_name[name] for _, part in parts]) for name in parts[0][1].by_name},
        joined([part.losses_W for _, part in parts]),
        {
            name: np.concatenate([part.entries[name] for _, part in parts])[order]
            for name in parts[0][1].entries
        },
    )


def _head(
    case: TrainingCase, outputs_WBO: Ball, batch: Batch, scale: float = 1.0
) -> tuple[Ball, Ball]:
    """Return the losses (`model.loss_of`, in float64) and their gradient, scaled."""
    difference = plus(outputs_WBO, exactly(-batch.targets_WBO), "float64")
    errors_WB = summed(times(difference, difference, "float64"), (2,), "float64")
    tagged_WB = (
        plus(errors_WB, exactly(batch.tags_WB), "float64") if case.loss == "tagged" else errors_WB
    )
    totals_W = summed(tagged_WB, (1,), "float64")
    size = batch.inputs_WBI.shape[1] * (1 if case.loss == "tagged" else outputs_WBO.centre.shape[2])
    exact_share = is_power_of_two(size)
    share = exactly(np.array(1.0 / size))
    share = Ball(share.centre, share.centre * (0.0 if exact_share else OWN_ROUNDOFF), share.quantum)
    doubled = Ball(2 * difference.centre, 2 * difference.radius, 2 * difference.quantum)
    return times(totals_W, share, "float64"), times(
        doubled, _micro_share(case, scale, size), "float64"
    )


def _micro_share(case: TrainingCase, scale: float, size: int = 1) -> Ball:
    """Return the number that backward starts from, divided by the terms of a mean. Shape ().

    A micro-step's backward starts from 1 / K, which a mean divides once more.
    """
    share = exactly(np.array(scale / (size * case.accumulation)))
    exact = is_power_of_two(size) and is_power_of_two(case.accumulation)
    return Ball(share.centre, share.centre * (0.0 if exact else 3 * OWN_ROUNDOFF), share.quantum)


def outputs(case: TrainingCase, parameters: Mapping[str, FloatArray], batch: Batch) -> Ball:
    """Return the model's outputs for every rank's inputs. Shape (W, B, O)."""
    if len(set(batch.passed_by)) > 1:
        parts = [(ranks, outputs(case, parameters, part)) for ranks, part in batch.alike()]
        order = np.argsort([rank for ranks, _ in parts for rank in ranks])
        return Ball(
            np.concatenate([ball.centre for _, ball in parts])[order],
            np.concatenate([ball.radius for _, ball in parts])[order],
            0.0,
        )
    return Stack(case, parameters, batch.passed_by_all, batch.drawn, batch.running).forward(
        batch.inputs_WBI
    )[0]


def losses(case: TrainingCase, outputs_WBO: Ball, batch: Batch) -> Ball:
    """Return the losses of outputs against every rank's own targets. Shape (W,)."""
    return _head(case, outputs_WBO, batch)[0]
