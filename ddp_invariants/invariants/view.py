"""The evidence view: one training case's evidence, with the values that several rules need.

Each shared value is computed once. A rank's twin is the unwrapped module with the same parameters,
batch and random state.

Suffixes: W ranks, P elements of all trainable parameters end to end.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import LARGEST, ROUNDOFF, SMALLEST_NORMAL, FloatArray
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants.rule import NotAbout, RuleSet, Unjudged
from ddp_invariants.oracle import balls
from ddp_invariants.oracle import training as oracle
from ddp_invariants.oracle.balls import Ball, Entries
from ddp_invariants.oracle.optimizer import Optimization
from ddp_invariants.records.evidence import Incident, Layout, Moment, Tensors, TrainingEvidence

UNDECLARED = Declarations()
training = RuleSet["EvidenceView"]()
"""All rules about training."""


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
class Local:
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


class EvidenceView:
    """The evidence of a training case, as the rules read it."""

    def __init__(self, evidence: TrainingEvidence, declared: Declarations = UNDECLARED) -> None:
        self.evidence, self.case, self.declared = evidence, evidence.case, declared
        self._noted: dict[tuple[Moment, int], tuple[Tensors, ...] | None] = {}
        self._means: dict[int, Ball] = {}
        self._truths: list[Truth] = []

    @property
    def incident(self) -> Incident | None:
        """The way the run ended, if it did not end by itself."""
        return self.evidence.incident

    @cached_property
    def cut_short(self) -> str:
        """The reason why the ranks did not finish the case; empty if they did."""
        if self.incident is not None:
            return f"the run {self.incident.kind}"
        for rank, evidence in enumerate(self.evidence.ranks):
            if evidence.raised is not None:
                error = evidence.raised
                return (
                    f"rank {rank} raised {error.type} in {error.phase} of step "
                    f"{error.step}: {error.message}"
                )
        return ""

    def noted(self, moment: Moment, step: int = 0) -> tuple[Tensors, ...] | None:
        """Return the tensors of a moment on every rank; None unless all ranks reached it."""
        key = (moment, step)
        if key not in self._noted:
            self._noted[key] = self.evidence.moment(moment, step)
        return self._noted[key]

    def every_rank(self, moment: Moment, step: int = 0) -> tuple[Tensors, ...]:
        """Return the tensors of a moment on every rank.

        Raises:
            Unjudged: A rank did not reach the moment.
        """
        tensors = self.noted(moment, step)
        if tensors is None:
            raise Unjudged(
                f"no evidence of {moment!r} at step {step}: "
                f"{self.cut_short or 'a rank recorded none'}"
            )
        return tensors

    def of_rank(self, rank: int, moment: Moment, step: int) -> Tensors:
        """Return the tensors of a moment on one rank; the other ranks need not have reached it.

        Raises:
            Unjudged: The rank did not reach the moment.
        """
        tensors = self.evidence.ranks[rank].at(moment, step)
        if tensors is None:
            raise Unjudged(
                f"no evidence of {moment!r} at step {step} on rank {rank}: "
                f"{self.cut_short or 'the rank recorded none'}"
            )
        return tensors

    def steps(self, moment: Moment) -> range:
        """Return the steps in which all ranks reached a moment.

        Raises:
            Unjudged: There is no such step.
        """
        self.every_rank(moment, 0)
        return range(
            next(
                (step for step in range(self.case.steps) if self.noted(moment, step) is None),
                self.case.steps,
            )
        )

    def micro_steps(self, step: int) -> range:
        """Return the numbers of a step's micro-steps."""
        return range(step * self.case.accumulation, (step + 1) * self.case.accumulation)

    def all_micro_steps(self, moment: Moment) -> range:
        """Return the micro-steps in which all ranks reached a moment.

        Raises:
            Unjudged: There is no such micro-step.
        """
        self.every_rank(moment, 0)
        count = self.case.steps * self.case.accumulation
        return range(
            next((number for number in range(count) if self.noted(moment, number) is None), count)
        )

    def at(self, micro: int) -> str:
        """Return a micro-step in words."""
        step, part = divmod(micro, self.case.accumulation)
        return f"step {step}" + (f", micro-step {part}" if self.case.accumulation > 1 else "")

    @cached_property
    def synchronised_each(self) -> bool:
        """True if every micro-step was synchronised, for lack of a way to prevent it."""
        each = (
            self.case.passes == "retained"
            or self.evidence.ranks[0].driven.get("accumulation") == "each"
        )
        return self.case.accumulation > 1 and each and self.case.passes != "joint"

    @cached_property
    def clean_steps(self) -> int:
        """Number of steps before the first poisoned or possibly overflowing step.

        From that step on, numbers need not be finite. A step may overflow because of a loss scale.
        """
        clean = self.case.steps if self.case.poison is None else self.case.poison.step
        if self.case.scaler is None:
            return clean
        return next(
            (
                step
                for step in range(clean)
                if self.noted("local", self.micro_steps(step)[-1]) is not None
                and self.overflows(step) is not False
            ),
            clean,
        )

    def scale(self, step: int) -> float:
        """Return the factor on a step's loss: the loss scale that the previous step left.

        Raises:
            Unjudged: A rank did not reach the step, or the ranks' scales differ.
        """
        if self.case.scaler is None:
            return 1.0
        if step == 0:
            return float(2.0**self.case.scaler.log2_scale)
        scales = {rank.scales[step - 1] for rank in self.evidence.ranks if len(rank.scales) >= step}
        if len(scales) != 1 or any(len(rank.scales) < step for rank in self.evidence.ranks):
            raise Unjudged(
                f"the ranks' loss scales already differ when step {step} starts"
                if len(scales) > 1
                else (
                    f"no evidence of the loss scale of step {step}: "
                    f"{self.cut_short or 'a rank recorded none'}"
                )
            )
        return scales.pop()

    def overflows(self, step: int) -> bool | None:
        """Return whether a step reduces values that are not finite.

        Returns:
            None if sums come so close to overflow that their order decides.

        Raises:
            Unjudged: Evidence is missing.
        """
        records = [self.every_rank("local", number) for number in self.micro_steps(step)]
        layout = records[0][0].layout
        values_P = np.concatenate(
            [np.stack([flat_by_name(tensors, layout) for tensors in record]) for record in records]
        )
        if not np.isfinite(values_P).all():
            return True
        return False if (np.abs(values_P).sum(0) <= self.form(layout).largest).all() else None

    def skips(self, step: int) -> list[bool]:
        """Return whether each rank's scaler skipped a step; a skip lowers the scale.

        Raises:
            Unjudged: A rank did not reach the step, or the ranks' scales differed before.
        """
        before = self.scale(step)
        if any(len(rank.scales) <= step for rank in self.evidence.ranks):
            raise Unjudged(
                f"no evidence of the loss scale after step {step}: "
                f"{self.cut_short or 'a rank recorded none'}"
            )
        return [rank.scales[step] < before for rank in self.evidence.ranks]

    def is_skipped(self, step: int) -> bool:
        """Return whether a step must move nothing.

        A step must move nothing if its gradients overflow, or if they may overflow and all ranks
        report an overflow.

        Raises:
            Unjudged: Evidence is missing, or the ranks disagree where only they can know.
        """
        if self.case.scaler is None:
            return False
        overflows = self.overflows(step)
        if overflows is not None:
            return overflows
        skips = self.skips(step)
        if len(set(skips)) > 1:
            raise Unjudged(
                f"step {step} is close to overflow, and the ranks disagree on whether it overflows"
            )
        return skips[0]

    @cached_property
    def batches(self) -> list[oracle.Batch]:
        """Every rank's samples at each micro-step."""
        return oracle.batches(self.case)

    def batch(self, number: int) -> oracle.Batch:
        """Return every rank's samples at a micro-step, with the random numbers its forward drew.

        Raises:
            Unjudged: The forward draws random numbers, and they are not known on every rank.
        """
        batch, drawn = self.batches[number], self.case.model.draws
        if not drawn:
            return batch
        drawn_W = [tensors.by_name for tensors in self.every_rank("drawn", number)]
        shapes = {
            index: (batch.inputs_WBI.shape[1], self.case.model.widths()[index]) for index in drawn
        }
        names = {f"layers.{index}": shape for index, shape in shapes.items()}
        if any(
            name not in by_name or by_name[name].shape != shape
            for by_name in drawn_W
            for name, shape in names.items()
        ):
            raise Unjudged(
                f"the random numbers of micro-step {number}'s forward are not known: a layer did "
                "not draw exactly once for the batch"
            )
        return replace(
            batch,
            drawn={
                index: np.stack([by_name[f"layers.{index}"] for by_name in drawn_W])
                for index in drawn
            },
        )

    def local(self, step: int) -> Local:
        """Return the sum of the twins' gradients over a step's micro-steps.

        The layout is that of the twins' first record of the step.

        Raises:
            Unjudged: Evidence is missing, or a local gradient is not finite.
        """
        records = [self.every_rank("local", number) for number in self.micro_steps(step)]
        layout = records[0][0].layout
        values_KWP = np.stack(
            [np.stack([flat_by_name(tensors, layout) for tensors in record]) for record in records]
        )
        if not np.isfinite(values_KWP).all():
            raise Unjudged(f"a local gradient of step {step} is not finite")
        if self.case.sparse:
            return self._entries(step, layout)
        quantum_P = balls.quantum_of(values_KWP).min((0, 1))
        centre_WP = values_KWP.sum(0)
        # Only the oracle knows the gradients of recast parameters; its bounds hold for any order.
        recast = self.case.recast
        radius_P = np.repeat(
            [np.inf if slot.name in recast else 0.0 for slot in layout.slots], layout.sizes
        )
        return Local(
            centre_WP,
            np.broadcast_to(radius_P, centre_WP.shape),
            np.abs(values_KWP).sum(0),
            quantum_P,
        )

    def _entries(self, step: int, layout: Layout) -> Local:
        """Return the same sum for a case with a sparse gradient.

        A sparse gradient is stored as entries, and an implementation may add the entries up in any
        order, also across ranks.
        """
        parts_W = []
        for rank in range(self.case.world_size):
            records = [
                self.every_rank("entries", number)[rank].by_name
                for number in self.micro_steps(step)
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
        return Local(
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
            self._means[step] = self._mean(self.local(step), step, self.layout(step))
        return self._means[step]

    def mean_of(self, active: list[int], step: int) -> tuple[Ball, Layout]:
        """Return the gradient that the ranks with a batch must hold at a step, and its layout.

        The step has one micro-step. Shape (P,). A rank without a batch counts as zero, or does not
        count, as the implementation declares.

        Raises:
            Unjudged: Evidence is missing, or a local gradient is not finite.
        """
        records = [self.of_rank(rank, "local", step) for rank in active]
        layout = records[0].layout
        values_WP = np.stack([flat_by_name(tensors, layout) for tensors in records])
        if not np.isfinite(values_WP).all():
            raise Unjudged(f"a local gradient of step {step} is not finite")
        quantum_P = balls.quantum_of(values_WP).min(0)
        if self.declared.divisor == "initial":
            zeros_WP = np.zeros((self.case.world_size - len(active), values_WP.shape[1]))
            values_WP = np.concatenate([values_WP, zeros_WP])
        # Two more roundings: a cast down and a cast up again.
        lowered = 2 if self.declared.exactness in ROUNDOFF else 0
        mean = balls.mean_over_ranks(
            values_WP,
            np.zeros_like(values_WP),
            np.abs(values_WP),
            quantum_P,
            self.form(layout),
            1 + lowered + balls.COMPLEX_DIVISION * layout.complex_P,
        )
        return mean, layout

    def layout(self, step: int) -> Layout:
        """Return the layout of the twins' gradients of a step."""
        return self.every_rank("local", self.micro_steps(step)[0])[0].layout

    def _mean(self, fresh: Local, step: int, layout: Layout) -> Ball:
        """Return the mean over the ranks of a step's gradients.

        Gradients that each rank kept from the step before are added first.
        """
        form, world_size = self.form(layout), self.case.world_size
        # If every micro-step is reduced, the accumulated gradient is reduced again each time, with
        # new roundings.
        rounds = self.case.accumulation if self.synchronised_each else 1
        passes = (
            self.case.accumulation
            + (rounds - 1) * (world_size + 1)
            + rounds * balls.COMPLEX_DIVISION * layout.complex_P
        )
        # Two more roundings: a cast down and a cast up again.
        passes += 2 if self.declared.exactness in ROUNDOFF else 0
        passes += self._most_entries(step) if self.case.sparse else 0
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
        if self.declared.reduction == "mean":
            return mean
        return Ball(mean.centre * world_size, mean.radius * world_size, mean.quantum)

    @property
    def divisor(self) -> int:
        """The factor from a mean to the declared reduction: 1, or the world size for a sum."""
        return self.case.world_size if self.declared.reduction == "sum" else 1

    def _most_entries(self, step: int) -> int:
        """Return the largest number of entries of a sparse gradient: one per sample of a step."""
        return sum(
            len(indices)
            for number in self.micro_steps(step)
            for indices in self.batches[number].indices
        )

    def _left(self, step: int, layout: Layout) -> Ball:
        """Return the gradients that a step left in place, on every rank.

        These are the recorded gradients; if gradients are hidden, they are the correct ones. Shape
        (W, P), or (P,) if they must be equal on all ranks.
        """
        if self.declared.gradients == "hidden":
            return self.truth(step).gradient
        left_WP = np.stack(
            [flat_by_name(tensors, layout) for tensors in self.every_rank("reduced", step)]
        )
        if not np.isfinite(left_WP).all():
            raise Unjudged(f"the gradients left from step {step} are not finite")
        return Ball(left_WP, np.zeros_like(left_WP), balls.quantum_of(left_WP).min(0))

    def form(self, layout: Layout) -> balls.Format:
        """Return the formats of the reduction: the gradients' own, or the lower format declared."""
        form, lower = form_of(layout), self.declared.exactness
        if lower not in ROUNDOFF:
            return form
        return replace(
            form,
            roundoff=np.maximum(form.roundoff, ROUNDOFF[lower]),
            smallest=np.maximum(form.smallest, SMALLEST_NORMAL[lower]),
            largest=np.minimum(form.largest, LARGEST[lower]),
        )

    def truth(self, step: int) -> Truth:
        """Return the result of one process that makes the step on the global batch.

        The process starts from the parameters that the ranks held at the step's start.

        Raises:
            Unjudged: The ranks' parameters differ, evidence is missing, or the step is poisoned.
        """
        while len(self._truths) <= step:
            self._truths.append(self._truth(len(self._truths)))
        return self._truths[step]

    @cached_property
    def _optimization(self) -> Optimization:
        """The optimizer before the first step, with the loaded state if a state was loaded."""
        loaded = self.noted("restored state", 0)
        if loaded is None:
            return Optimization()
        held, names = (
            loaded[0].by_name,
            [slot.name for slot in self.layout(0).slots if slot.dtype is not None],
        )

        def of_all(key: str) -> Ball | None:
            parts = [held.get(f"{name}/{key}") for name in names]
            return (
                balls.exactly(np.concatenate([part.ravel() for part in parts if part is not None]))
                if all(part is not None for part in parts)
                else None
            )

        steps = max(
            (int(value) for name, value in held.items() if name.endswith("/step")), default=0
        )
        return Optimization(
            of_all("momentum_buffer") or of_all("exp_avg"), of_all("exp_avg_sq"), steps
        )

    def _truth(self, step: int) -> Truth:
        skipped, poison = self.is_skipped(step), self.case.poison
        if (
            poison is not None
            and poison.step <= step
            and (self.case.scaler is None or (poison.step == step and not skipped))
        ):
            raise NotAbout(f"the case injects a value that is not finite at step {poison.step}")
        if self.case.penalty:
            raise NotAbout("the loss contains a penalty on gradients")
        held = self.every_rank("forward", step)
        if any(tensors != held[0] for tensors in held[1:]):
            raise Unjudged(f"the ranks' parameters already differ when step {step} starts")
        if not np.isfinite(held[0].values_P).all():
            raise Unjudged(f"the parameters at the start of step {step} are not finite")
        numbers, layout = self.micro_steps(step), self.layout(step)
        case, held_0 = self.case.at(step), held[0].by_name
        names = [slot.name for slot in layout.slots if slot.dtype is not None]
        frozen = {
            name: oracle.nothing(held_0[name], case.world_size)
            for name in self.left_frozen(step)
            if name in held_0
        }
        scale = self.scale(step)
        micro_K = [oracle.gradients(case, held_0, self.batch(number), scale) for number in numbers]
        micro_K = (
            [replace(micro, by_name={**micro.by_name, **frozen}) for micro in micro_K]
            if frozen
            else micro_K
        )
        fresh = _end_to_end(micro_K, names, self.case.world_size)
        gradient = self._mean(fresh, step, layout)
        start_P = np.concatenate([held_0[name].ravel() for name in names])
        apart = (
            Entries(self._most_entries(step), fresh.most_WP.mean(0) * self.divisor)
            if case.sparse
            else None
        )
        if skipped:
            return _skipped(start_P, gradient, len(numbers))
        unscaled = (
            gradient if case.scaler is None else balls.scaled(gradient, 1 / scale, form_of(layout))
        )
        updated = self._updated(
            step, start_P, unscaled, form_of(layout), self._left_out(step, layout), apart
        )
        losses = tuple(
            Ball(
                micro.losses_W.centre.mean(),
                micro.losses_W.radius.mean() + 2.0**-50 * np.abs(micro.losses_W.centre).mean(),
                0.0,
            )
            for micro in micro_K
        )
        return Truth(losses, gradient, updated)

    def trainable(self, step: int) -> frozenset[str]:
        """Return the names of the parameters that are trained at a step."""
        at_first = frozenset(
            row.name for row in self.evidence.ranks[0].structure_before if row.requires_grad
        )
        return (at_first | self.case.sometimes_frozen) - self.left_frozen(step)

    def left_frozen(self, step: int) -> frozenset[str]:
        """Return the names of the parameters that are frozen at this step and trained at others."""
        return (
            self.case.sometimes_frozen & self.case.frozen(step)
            if self.case.between_steps
            else frozenset()
        )

    def unused(self, step: int) -> tuple[frozenset[str], ...]:
        """Return, for each rank, the names of the trainable parameters it does not use at a step.

        A parameter counts as unused if none of the step's micro-steps uses it.
        """
        trainable = self.trainable(step)
        model, ranks = self.case.model, range(self.case.world_size)
        return tuple(
            frozenset(
                trainable & (model.used(frozenset()) - model.used(self.case.never_used(rank, step)))
            )
            for rank in ranks
        )

    def _left_out(self, step: int, layout: Layout) -> NDArray[np.bool_] | None:
        """Return a mask of the elements that the optimizer leaves out at a step.

        These are frozen elements, and elements that no rank uses and that have no gradient. Shape
        (P,); None if there are none.
        """
        names = self.left_frozen(step)
        if self.case.unused:
            reduced, nowhere = (
                self.every_rank("reduced", step),
                frozenset.intersection(*self.unused(step)),
            )
            names |= nowhere - reduced[0].by_name.keys()
        if not names:
            return None
        return np.repeat([slot.name in names for slot in layout.slots], layout.sizes)

    def _updated(
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
        plan = self.case.at(step).optimizer
        start = Ball(start_P, np.zeros_like(start_P), balls.quantum_of(start_P))
        if not self.declared.main:
            return self._optimization.step(plan, start, gradient, form, left_out_P, entries)
        # The ranks hold the rounded main copy. The main copy itself lies within one rounding of the
        # held values, before the step and after it.
        main = ROUNDOFF[self.declared.main]
        lower_P = form.roundoff > main
        held_P = np.where(lower_P, form.roundoff, 0.0)
        start = Ball(start_P, held_P * np.abs(start_P), np.where(lower_P, 0.0, start.quantum))
        copied = replace(form, roundoff=np.minimum(form.roundoff, main))
        updated = self._optimization.step(plan, start, gradient, copied, left_out_P, entries)
        return Ball(
            updated.centre,
            updated.radius + held_P * updated.most,
            np.where(lower_P, 0.0, updated.quantum),
        )


def _skipped(start_P: FloatArray, gradient: Ball, micro_steps: int) -> Truth:
    """Return the truth of a step that moves nothing; its gradient and its losses are not known."""
    unknown = Ball(np.zeros(()), np.full((), np.inf), 0.0)
    return Truth(
        (unknown,) * micro_steps,
        Ball(gradient.centre, np.full_like(gradient.centre, np.inf), 0.0),
        Ball(start_P, np.zeros_like(start_P), balls.quantum_of(start_P)),
    )


def _end_to_end(gradients_K: list[oracle.Gradients], names: list[str], world_size: int) -> Local:
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
    return Local(
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


@lru_cache(maxsize=64)
def form_of(layout: Layout) -> balls.Format:
    """Return the formats of a record's elements; cached, since a case's steps share a layout."""
    return balls.format_of(layout)


def flat_by_name(tensors: Tensors, layout: Layout) -> FloatArray:
    """Return a record's elements in another record's order; missing tensors count as zero.

    Shape (P,).

    Raises:
        Unjudged: A tensor has another number of elements.
    """
    if tensors.layout is layout or (
        [slot.name for slot in tensors.layout.slots] == [slot.name for slot in layout.slots]
        and tensors.layout.sizes == layout.sizes
    ):
        return tensors.values_P
    pieces = [np.empty(0)]
    for slot, size in zip(layout.slots, layout.sizes, strict=True):
        values = tensors.by_name.get(slot.name, np.zeros(size)).ravel()
        if values.size != size and slot.dtype is not None:
            raise Unjudged(f"{slot.name!r} has {values.size} elements, expected {size}")
        pieces.append(values[:size])
    return np.concatenate(pieces)
