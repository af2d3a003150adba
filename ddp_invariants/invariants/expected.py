"""The values that every rank must hold, computed from a case's recorded evidence.

The single-process values come from the oracle, the means from the gradients of the ranks' twins. A
rank's twin is the unwrapped module with the same parameters, batch and random state.

Suffixes: W ranks, K micro-steps, P elements of all trainable parameters end to end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import ROUNDOFF, FloatArray
from ddp_invariants.invariants.recorded import RecordedTraining, flat_by_name, form_of
from ddp_invariants.invariants.rule import NotAbout, Unjudged
from ddp_invariants.oracle import balls
from ddp_invariants.oracle import training as oracle
from ddp_invariants.oracle.balls import Ball, Entries
from ddp_invariants.records.evidence import Layout, Tensors


@dataclass(frozen=True)
class Truth:
    """The result of single-process training at one step.

    Attributes:
        losses: The mean loss of each micro-step.
        gradient: The gradient, shape (P,).
        updated: The updated parameters, shape (P,).
    """

    losses: tuple[Ball, ...]
    gradient: Ball
    updated: Ball


@dataclass(frozen=True)
class LocalGradients:
    """The ranks' gradients of one step before any reduction, as sums over its micro-steps.

    Attributes:
        centre_WP: The sums, shape (W, P).
        radius_WP: The largest error of each sum, shape (W, P).
        most_WP: The sum of the summands' magnitudes, shape (W, P).
        quantum_P: Every summand is a multiple of this number, shape (P,).
    """

    centre_WP: FloatArray
    radius_WP: FloatArray
    most_WP: FloatArray
    quantum_P: FloatArray


def _stacked(records: Sequence[Sequence[Tensors]], step: int) -> tuple[Layout, FloatArray]:
    """Return the layout of a step's first record, and all local gradients, shape (K, W, P).

    Args:
        records: The records of each micro-step, by rank.
        step: The step.

    Raises:
        Unjudged: A local gradient is not finite.
    """
    layout = records[0][0].layout
    values_KWP = np.stack(
        [np.stack([flat_by_name(tensors, layout) for tensors in record]) for record in records]
    )
    if not np.isfinite(values_KWP).all():
        raise Unjudged(f"a local gradient of step {step} is not finite")
    return layout, values_KWP


class ExpectedValues:
    """The expected gradients, losses and parameters of a case; each value is computed once."""

    def __init__(self, recorded: RecordedTraining) -> None:
        self.recorded, self.case, self.declared = recorded, recorded.case, recorded.declared
        self._means: dict[int, Ball] = {}
        self._truths: list[Truth] = []
        self._uneven: dict[int, Ball] = {}
        self._copies: Ball | None = None

    def local(self, step: int) -> LocalGradients:
        """Return the sum of the twins' gradients over a step's micro-steps.

        The layout is that of the twins' first record of the step.

        Raises:
            Unjudged: Evidence is missing, or a local gradient is not finite.
        """
        records = [
            self.recorded.every_rank("local", number) for number in self.recorded.micro_steps(step)
        ]
        layout, values_KWP = _stacked(records, step)
        if self.case.sparse:
            return self._entries(step, layout)
        quantum_P = balls.quantum_of(values_KWP).min((0, 1))
        centre_WP = values_KWP.sum(0)
        return LocalGradients(
            centre_WP,
            np.broadcast_to(self._radius(layout), centre_WP.shape),
            np.abs(values_KWP).sum(0),
            quantum_P,
        )

    def _radius(self, layout: Layout) -> FloatArray:
        """Return how far the twins' gradients may lie from those under test. Shape (P,).

        Only the oracle knows the gradients of recast parameters; its bounds hold for any order.
        """
        recast = self.case.recast
        return np.repeat(
            [np.inf if slot.name in recast else 0.0 for slot in layout.slots], layout.sizes
        )

    def _entries(self, step: int, layout: Layout) -> LocalGradients:
        """Return the same sum for a case with a sparse gradient.

        A sparse gradient is stored as entries, and an implementation may add the entries up in any
        order, also across ranks.
        """
        parts_W = []
        for rank in range(self.case.world_size):
            records = [
                self.recorded.every_rank("entries", number)[rank].by_name
                for number in self.recorded.micro_steps(step)
            ]
            parts_W.append(
                [
                    np.concatenate(
                        [
                            entries.reshape(len(entries), -1 if entries.size else 0)
                            for entries in (record[slot.name] for record in records)
                        ]
                    )
                    for slot in layout.slots
                    if slot.dtype is not None
                ]
            )
        if any(
            len(entries) != len(following)
            for parts in zip(*parts_W, strict=True)
            for entries, following in pairwise(parts)
        ):
            raise Unjudged(f"the ranks' gradients of step {step} have different numbers of entries")
        parts = [
            np.stack(entries_W) for entries_W in zip(*parts_W, strict=True)
        ]  # Each of shape (W, entries, elements).
        return LocalGradients(
            np.concatenate([part.sum(1) for part in parts], 1),
            np.zeros((self.case.world_size, sum(layout.sizes))),
            np.concatenate([np.abs(part).sum(1) for part in parts], 1),
            np.concatenate([balls.quantum_of(part).min((0, 1)) for part in parts]),
        )

    def local_means(self, step: int) -> Ball:
        """Return the gradient that every rank must hold: the mean of the twins' gradients.

        Gradients left in place on purpose are added. Shape (P,), laid out like the twins' record.

        Raises:
            Unjudged: Evidence is missing, or a local gradient is not finite.
        """
        if step not in self._means:
            mean = self._mean(self.local(step), step, self.recorded.layout(step))
            self._means[step] = self._in_parts(mean, step) if self._has_parts else mean
        return self._means[step]

    @property
    def _has_parts(self) -> bool:
        """True if a gradient has parts, of several forwards or of a penalty, that are not recorded."""
        return self.case.passes == "joint" or self.case.penalty == "weights"

    def _in_parts(self, mean: Ball, step: int) -> Ball:
        """Return the mean of a gradient with parts that are not recorded.

        An implementation may reduce each part by itself. A part can be much larger than
        the sum of all parts, and so can its rounding. Both means are within the oracle's bound.

        Raises:
            Unjudged: The truth is not known.
        """
        truth = self.truth(step).gradient
        if truth.radius.shape != mean.radius.shape:
            raise Unjudged(f"the oracle has gradients of other parameters at step {step}")
        return Ball(mean.centre, mean.radius + 2 * truth.radius, mean.quantum)

    def mean_of(self, active: list[int], step: int) -> tuple[Ball, Layout]:
        """Return the gradient that the ranks with a batch must hold at a step, and its layout.

        Shape (P,). A rank without a batch counts as zero, or does not count, as the implementation
        declares.

        Raises:
            Unjudged: Evidence is missing, or a local gradient is not finite.
        """
        records = [
            [self.recorded.of_rank(rank, "local", number) for rank in active]
            for number in self.recorded.micro_steps(step)
        ]
        layout, values_KWP = _stacked(records, step)
        quantum_P = balls.quantum_of(values_KWP).min((0, 1))
        if self.declared.divisor == "initial":
            counted = (0, self.case.world_size - len(active))
            values_KWP = np.pad(values_KWP, ((0, 0), counted, (0, 0)))
        centre_WP = values_KWP.sum(0)
        divisor = len(centre_WP)
        rounds, passes = self._rounds(divisor, layout)
        divided = self.declared.divisor == "active" and self.declared.reduction == "mean"
        if divided and not balls.is_power_of_two(self.case.world_size):
            # The sum may be divided by W as ever, and then multiplied by W / active ranks.
            passes, quantum_P = passes + 1, np.zeros_like(quantum_P)
        mean = balls.mean_over_ranks(
            centre_WP,
            np.broadcast_to(self._radius(layout), centre_WP.shape),
            np.abs(values_KWP).sum(0),
            quantum_P / float(divisor) ** (rounds - 1),
            self.recorded.form(layout),
            passes,
        )
        return (mean if self.declared.reduction == "mean" else mean.times(divisor)), layout

    def updated_by(self, active: list[int], step: int) -> Ball:
        """Return the parameters after a step that only the ranks with a batch make; shape (P,).

        Raises:
            NotAbout: The update is not known.
            Unjudged: Evidence is missing, or the ranks' parameters differed before.
        """
        case, first = self.case, self.case.world_size
        if len(active) == first:
            return self.truth(step).updated
        known = self.declared.update != "own" and self.declared.exactness != "lossy"
        if not known or self.declared.main or case.scaler is not None or case.clip is not None:
            raise NotAbout("the update of a step without some ranks is not known")
        plans = self.recorded.plans(step)
        if len(plans) > 1:
            raise NotAbout("the optimizer has several groups")
        # The optimizer's state is that of all steps before, each of which is made once.
        if step not in self._uneven:
            if step:
                before = [rank for rank in range(first) if step - 1 < case.steps_of(rank)]
                self.updated_by(before, step - 1)
            gradient, layout = self.mean_of(active, step)
            start = self.recorded.of_rank(active[0], "forward", step)
            start_P = flat_by_name(start, layout)
            form = form_of(layout)
            self._uneven[step] = self.updated(step, start_P, gradient, form)
        return self._uneven[step]

    def _mean(self, fresh: LocalGradients, step: int, layout: Layout) -> Ball:
        """Return the mean over the ranks of a step's gradients.

        Gradients that each rank kept from the step before are added first.
        """
        form, world_size = self.recorded.form(layout), self.case.world_size
        rounds, passes = self._rounds(world_size, layout)
        passes += self.recorded.most_entries(step) if self.case.sparse else 0
        centre_WP, radius_WP, most_WP, quantum_P = (
            fresh.centre_WP,
            fresh.radius_WP,
            fresh.most_WP,
            fresh.quantum_P,
        )
        if self.case.zero_grad == "never" and step > 0:
            passes += 1
            left = self._left(step - 1, layout)
            quantum_P = np.minimum(quantum_P, left.quantum)
            centre_WP, radius_WP, most_WP = (
                left.centre + centre_WP,
                left.radius + radius_WP,
                left.most + most_WP,
            )
        quantum_P = quantum_P / float(world_size) ** (rounds - 1)
        mean = balls.mean_over_ranks(centre_WP, radius_WP, most_WP, quantum_P, form, passes)
        return mean.times(self.divisor)

    def _rounds(self, ranks: int, layout: Layout) -> tuple[int, NDArray[np.intp]]:
        """Return how often a step's gradient is reduced, and the roundings of its elements.

        If every micro-step is reduced, the accumulated gradient is reduced again each time, with new
        roundings.
        """
        rounds = self.case.accumulation if self.recorded.synchronised_each else 1
        # Two more roundings: a cast down and a cast up again.
        lowered = 2 if self.declared.exactness in ROUNDOFF else 0
        once = self.case.accumulation + (rounds - 1) * (ranks + 1) + lowered
        return rounds, once + rounds * balls.COMPLEX_DIVISION * layout.complex_P

    @property
    def divisor(self) -> int:
        """The factor from a mean to the declared reduction: 1, or the world size for a sum."""
        return self.case.world_size if self.declared.reduction == "sum" else 1

    def _left(self, step: int, layout: Layout) -> Ball:
        """Return the gradients that a step left in place, on every rank.

        These are the recorded gradients; if gradients are hidden, they are the correct ones. Shape
        (W, P), or (P,) if they must be equal on all ranks.
        """
        if self.declared.gradients == "hidden":
            return self.truth(step).gradient
        left_WP = np.stack(
            [flat_by_name(tensors, layout) for tensors in self.recorded.every_rank("reduced", step)]
        )
        if not np.isfinite(left_WP).all():
            raise Unjudged(f"the gradients left from step {step} are not finite")
        return Ball(left_WP, np.zeros_like(left_WP), balls.quantum_of(left_WP).min(0))

    def truth(self, step: int) -> Truth:
        """Return the result of one process that makes the step on the global batch.

        The process starts from the parameters that the ranks held at the step's start.

        Raises:
            Unjudged: The ranks' parameters differ, evidence is missing, or the step is poisoned.
        """
        while len(self._truths) <= step:
            self._truths.append(self._truth(len(self._truths)))
        return self._truths[step]

    def _truth(self, step: int) -> Truth:
        recorded, skipped, start = self.recorded, self.recorded.is_skipped(step), self._start(step)
        case, layout, scale = recorded.cases[step], recorded.layout(step), recorded.scale(step)
        names = [slot.name for slot in layout.slots if slot.dtype is not None]
        micro_K = self._micro_gradients(step, start)
        fresh = _end_to_end(micro_K, names, self.case.world_size)
        gradient = self._mean(fresh, step, layout)
        start_P = np.concatenate([start[name].ravel() for name in names])
        if skipped:
            return _skipped(start_P, gradient, len(micro_K))
        entries = (
            Entries(recorded.most_entries(step), fresh.most_WP.mean(0) * self.divisor)
            if case.sparse
            else None
        )
        form = form_of(layout)
        unscaled = gradient if case.scaler is None else balls.scaled(gradient, 1 / scale, form)
        left_out_P = recorded.left_out(step, layout)
        updated = self.updated(step, start_P, unscaled, form, left_out_P, entries)
        losses = tuple(
            Ball(
                micro.losses_W.centre.mean(),
                micro.losses_W.radius.mean() + 2.0**-50 * np.abs(micro.losses_W.centre).mean(),
                0.0,
            )
            for micro in micro_K
        )
        return Truth(losses, gradient, updated)

    def _start(self, step: int) -> dict[str, FloatArray]:
        """Return the parameters from which every rank starts a step, by name.

        Raises:
            NotAbout: No single-process values are known for this step of the case.
            Unjudged: The ranks' parameters differ, are not finite, or were not recorded.
        """
        poison = self.case.poison
        if (
            poison is not None
            and poison.step <= step
            and (
                self.case.scaler is None
                or (poison.step == step and not self.recorded.is_skipped(step))
            )
        ):
            raise NotAbout(f"the case injects a value that is not finite at step {poison.step}")
        if self.case.penalty == "inputs":
            raise NotAbout("the loss contains a penalty on gradients")
        held = self.recorded.every_rank("forward", step)
        if any(tensors != held[0] for tensors in held[1:]):
            raise Unjudged(f"the ranks' parameters already differ when step {step} starts")
        if not np.isfinite(held[0].values_P).all():
            raise Unjudged(f"the parameters at the start of step {step} are not finite")
        return held[0].by_name

    def _micro_gradients(self, step: int, start: dict[str, FloatArray]) -> list[oracle.Gradients]:
        """Return the oracle's gradients of each micro-step; frozen parameters count as zero."""
        case, recorded, scale = self.recorded.cases[step], self.recorded, self.recorded.scale(step)
        frozen = {
            name: oracle.nothing(start[name], case.world_size)
            for name in recorded.left_frozen(step)
            if name in start
        }
        micro_K = [
            oracle.gradients(case, start, recorded.batch(number), scale)
            for number in recorded.micro_steps(step)
        ]
        return [replace(micro, by_name={**micro.by_name, **frozen}) for micro in micro_K]

    def updated(
        self,
        step: int,
        start_P: FloatArray,
        gradient: Ball,
        form: balls.Format,
        left_out_P: NDArray[np.bool_] | None = None,
        entries: Entries | None = None,
    ) -> Ball:
        """Return the parameters after the optimizer's step; shape (P,)."""
        if self.case.clip is not None:
            gradient = balls.clipped(gradient, self.case.clip, form)
        start = Ball(start_P, np.zeros_like(start_P), balls.quantum_of(start_P))
        if not self.declared.main:
            return self._stepped(step, start, gradient, form, left_out_P, entries)
        # The ranks hold the rounded main copy. The main copy itself lies within one rounding of the
        # held values, before the step and after it, and where the steps before have left it.
        main = ROUNDOFF[self.declared.main]
        lower_P = form.roundoff > main
        rounding_P = np.where(lower_P, balls.rounding(start_P, form), 0.0)
        start = Ball(start_P, rounding_P, np.where(lower_P, 0.0, start.quantum))
        if step == 0 and self.case.saved_by is None:
            start = replace(start, radius=np.zeros_like(start_P))
        elif self._copies is not None and not self._may_copy_anew(step):
            start = balls.both(start, self._copies)
        copied = replace(form, roundoff=np.minimum(form.roundoff, main))
        updated = self._stepped(step, start, gradient, copied, left_out_P, entries)
        # After a step that failed the copies may be those from before it.
        made = self.recorded.noted("updated", step) is not None and not self.case.injected_failure
        self._copies = updated if made else None
        return Ball(
            updated.centre,
            updated.radius + np.where(lower_P, balls.rounding(updated.most, form), 0.0),
            np.where(lower_P, 0.0, updated.quantum),
        )

    def _may_copy_anew(self, step: int) -> bool:
        """Return whether an optimizer may make its copies anew of the rounded parameters before a step."""
        return any(
            action.step == step and action.kind in ("assign", "cast")
            for action in self.case.between_steps
        )

    def _stepped(
        self,
        step: int,
        start: Ball,
        gradient: Ball,
        form: balls.Format,
        left_out_P: NDArray[np.bool_] | None,
        entries: Entries | None,
    ) -> Ball:
        """Return the result of the optimizer's step, with the options of each group."""
        recorded, optimization = self.recorded, self.recorded.loaded_optimization
        plans = recorded.plans(step)
        if len(plans) == 1:
            return optimization.step(plans[0], start, gradient, form, left_out_P, entries)
        layout = recorded.layout(step)
        numbers = [recorded.group_of(slot.name) for slot in layout.slots]
        group_P = np.repeat(numbers, layout.sizes)
        return optimization.step_groups(plans, group_P, start, gradient, form, left_out_P, entries)


def _skipped(start_P: FloatArray, gradient: Ball, micro_steps: int) -> Truth:
    """Return the truth of a step that moves nothing; its gradient and its losses are not known."""
    unknown = Ball(np.zeros(()), np.full((), np.inf), 0.0)
    return Truth(
        (unknown,) * micro_steps,
        Ball(gradient.centre, np.full_like(gradient.centre, np.inf), 0.0),
        Ball(start_P, np.zeros_like(start_P), balls.quantum_of(start_P)),
    )


def _end_to_end(
    gradients_K: list[oracle.Gradients], names: list[str], world_size: int
) -> LocalGradients:
    """Return the oracle's gradients of a step's micro-steps as sums, parameters end to end."""

    def flat(parts_K: list[dict[str, FloatArray]]) -> FloatArray:
        summed_WP: FloatArray = np.sum(
            [
                np.concatenate([parts[name].reshape(world_size, -1) for name in names], 1)
                for parts in parts_K
            ],
            axis=0,
        )
        return summed_WP

    balls_K = [gradients.by_name for gradients in gradients_K]
    quantum_P = np.repeat(
        [min(float(by_name[name].quantum) for by_name in balls_K) for name in names],
        [balls_K[0][name].centre[0].size for name in names],
    )
    return LocalGradients(
        flat([{name: ball.centre for name, ball in by_name.items()} for by_name in balls_K]),
        flat([{name: ball.radius for name, ball in by_name.items()} for by_name in balls_K]),
        flat(
            [
                {
                    name: gradients.entries.get(name, np.abs(ball.centre))
                    for name, ball in gradients.by_name.items()
                }
                for gradients in gradients_K
            ]
        ),
        quantum_P,
    )
