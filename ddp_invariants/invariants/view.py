"""One training case's evidence, with what several rules need computed once.

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
    """What single-process training gives at one step: each micro-step's mean loss, gradient and updated parameters (P,)."""

    losses: tuple[Ball, ...]
    gradient: Ball
    updated: Ball


@dataclass(frozen=True)
class Local:
    """What the ranks computed in one step, before anything is reduced: sums over its micro-steps.

    Attributes:
        centre_WP: The sums, shape (W, P).
        radius_WP: What they may be off by, shape (W, P).
        most_WP: The magnitudes of the summands, added up, shape (W, P).
        quantum_P: What all summands are multiples of, shape (P,).
    """

    centre_WP: FloatArray
    radius_WP: FloatArray
    most_WP: FloatArray
    quantum_P: FloatArray


class EvidenceView:
    """Evidence of a training case, as rules look at it."""

    def __init__(self, evidence: TrainingEvidence, declared: Declarations = UNDECLARED) -> None:
        self.evidence, self.case, self.declared = evidence, evidence.case, declared
        self._noted: dict[tuple[Moment, int], tuple[Tensors, ...] | None] = {}
        self._means: dict[int, Ball] = {}
        self._truths: list[Truth] = []

    @property
    def incident(self) -> Incident | None:
        """How the run ended where it did not end by itself."""
        return self.evidence.incident

    @cached_property
    def cut_short(self) -> str:
        """Why the ranks did not get through the case; empty when they did."""
        if self.incident is not None:
            return f"the run {self.incident.kind}"
        for rank, evidence in enumerate(self.evidence.ranks):
            if evidence.raised is not None:
                told = evidence.raised
                return f"rank {rank} raised {told['type']} in {told['phase']} of step {told['step']}: {told['message']}"
        return ""

    def noted(self, moment: Moment, step: int = 0) -> tuple[Tensors, ...] | None:
        """The tensors of a moment on every rank; None unless all ranks got there."""
        key = (moment, step)
        if key not in self._noted:
            self._noted[key] = self.evidence.moment(moment, step)
        return self._noted[key]

    def every_rank(self, moment: Moment, step: int = 0) -> tuple[Tensors, ...]:
        """The tensors of a moment on every rank.

        Raises:
            Unjudged: A rank did not get there.
        """
        tensors = self.noted(moment, step)
        if tensors is None:
            raise Unjudged(
                f"no evidence of {moment!r} at step {step}: {self.cut_short or 'a rank noted none'}"
            )
        return tensors

    def of_rank(self, rank: int, moment: Moment, step: int) -> Tensors:
        """The tensors of a moment on one rank, where others need not have got there.

        Raises:
            Unjudged: It did not.
        """
        tensors = self.evidence.ranks[rank].at(moment, step)
        if tensors is None:
            raise Unjudged(
                f"no evidence of {moment!r} at step {step} on rank {rank}: {self.cut_short or 'it noted none'}"
            )
        return tensors

    def steps(self, moment: Moment) -> range:
        """The steps that all ranks reached up to a moment.

        Raises:
            Unjudged: There is none.
        """
        self.every_rank(moment, 0)
        return range(
            next(
                (step for step in range(self.case.steps) if self.noted(moment, step) is None),
                self.case.steps,
            )
        )

    def micro_steps(self, step: int) -> range:
        """The numbers of a step's micro-steps."""
        return range(step * self.case.accumulation, (step + 1) * self.case.accumulation)

    def all_micro_steps(self, moment: Moment) -> range:
        """The micro-steps that all ranks reached up to a moment.

        Raises:
            Unjudged: There is none.
        """
        self.every_rank(moment, 0)
        count = self.case.steps * self.case.accumulation
        return range(
            next((number for number in range(count) if self.noted(moment, number) is None), count)
        )

    def at(self, micro: int) -> str:
        """A micro-step in words."""
        step, part = divmod(micro, self.case.accumulation)
        return f"step {step}" + (f", micro-step {part}" if self.case.accumulation > 1 else "")

    @cached_property
    def synchronised_each(self) -> bool:
        """Whether every micro-step was synchronised, for want of a way not to."""
        each = (
            self.case.passes == "retained"
            or self.evidence.ranks[0].driven.get("accumulation") == "each"
        )
        return self.case.accumulation > 1 and each and self.case.passes != "joint"

    @cached_property
    def clean_steps(self) -> int:
        """Steps before the first that is poisoned, or that a loss scale may make overflow: numbers need not be finite there."""
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
        """What the loss of a step was multiplied by: what the step before left of the scale.

        Raises:
            Unjudged: A rank did not get there, or the ranks' scales differ.
        """
        if self.case.scaler is None:
            return 1.0
        if step == 0:
            return float(2.0**self.case.scaler.log2_scale)
        found = {rank.scales[step - 1] for rank in self.evidence.ranks if len(rank.scales) >= step}
        if len(found) != 1 or any(len(rank.scales) < step for rank in self.evidence.ranks):
            raise Unjudged(
                f"the ranks' loss scales already differ when step {step} starts"
                if len(found) > 1
                else f"no evidence of the loss scale of step {step}: {self.cut_short or 'a rank noted none'}"
            )
        return found.pop()

    def overflows(self, step: int) -> bool | None:
        """Whether what a step reduces is not finite; None where sums come so close to it that their order decides.

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
        """Whether each rank's scaler skipped a step, which is when its scale falls.

        Raises:
            Unjudged: A rank did not get there, or the ranks' scales differed before.
        """
        before = self.scale(step)
        if any(len(rank.scales) <= step for rank in self.evidence.ranks):
            raise Unjudged(
                f"no evidence of the loss scale after step {step}: {self.cut_short or 'a rank noted none'}"
            )
        return [rank.scales[step] < before for rank in self.evidence.ranks]

    def is_skipped(self, step: int) -> bool:
        """Whether a step is to move nothing: its gradients overflow, or they may, and all ranks say they do.

        Raises:
            Unjudged: Evidence is missing, or the ranks do not agree on what they alone can know.
        """
        if self.case.scaler is None:
            return False
        overflows = self.overflows(step)
        if overflows is not None:
            return overflows
        skips = self.skips(step)
        if len(set(skips)) > 1:
            raise Unjudged(
                f"step {step} is about to overflow, and the ranks do not agree whether it does"
            )
        return skips[0]

    @cached_property
    def batches(self) -> list[oracle.Batch]:
        """Every rank's samples at each micro-step."""
        return oracle.batches(self.case)

    def batch(self, number: int) -> oracle.Batch:
        """Every rank's samples at a micro-step, and what its forward drew.

        Raises:
            Unjudged: It draws random numbers, and what they were is not known on every rank.
        """
        batch, drawn = self.batches[number], self.case.model.draws
        if not drawn:
            return batch
        found = [tensors.by_name for tensors in self.every_rank("drawn", number)]
        shapes = {
            index: (batch.inputs_WBI.shape[1], self.case.model.widths()[index]) for index in drawn
        }
        names = {f"layers.{index}": shape for index, shape in shapes.items()}
        if any(
            name not in one or one[name].shape != shape
            for one in found
            for name, shape in names.items()
        ):
            raise Unjudged(
                f"what the forward of micro-step {number} drew is not known: no layer drew it once, for the batch"
            )
        return replace(
            batch,
            drawn={index: np.stack([one[f"layers.{index}"] for one in found]) for index in drawn},
        )

    def local(self, step: int) -> Local:
        """The sum of the twins' gradients over a step's micro-steps, laid out like the twins' first record of it.

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
        # What is recast is known from the oracle alone, whose bounds hold for either order.
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
        """The same where a gradient is sparse: what it is kept as the sum of may be added up in any order, over ranks too."""
        found_W = []
        for rank in range(self.case.world_size):
            records = [
                self.every_rank("entries", number)[rank].by_name
                for number in self.micro_steps(step)
            ]
            found_W.append(
                [
                    np.concatenate(
                        [
                            one.reshape(len(one), -1 if one.size else 0)
                            for one in (record[slot.name] for record in records)
                        ]
                    )
                    for slot in layout.slots
                    if slot.dtype is not None
                ]
            )
        if any(
            len(one) != len(other)
            for parts in zip(*found_W, strict=True)
            for one, other in pairwise(parts)
        ):
            raise Unjudged(f"the ranks' gradients of step {step} have different numbers of entries")
        parts = [
            np.stack(one) for one in zip(*found_W, strict=True)
        ]  # Each (W, entries, elements).
        return Local(
            np.concatenate([part.sum(1) for part in parts], 1),
            np.zeros((self.case.world_size, sum(layout.sizes))),
            np.concatenate([np.abs(part).sum(1) for part in parts], 1),
            np.concatenate([balls.quantum_of(part).min((0, 1)) for part in parts]),
        )

    def local_means(self, step: int) -> Ball:
        """What every rank must hold: the mean of the twins' gradients, plus what was left in place on purpose.

        Shape (P,), laid out like the twins' record.

        Raises:
            Unjudged: Evidence is missing, or a local gradient is not finite.
        """
        if step not in self._means:
            self._means[step] = self._mean(self.local(step), step, self.layout(step))
        return self._means[step]

    def mean_of(self, active: list[int], step: int) -> tuple[Ball, Layout]:
        """What the ranks that have a batch must hold at a step of one micro-step, and how it is laid out.

        Shape (P,). The others count as zero, or not at all, as is declared.

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
        lowered = 2 if self.declared.exactness in ROUNDOFF else 0  # Cast down and up again.
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
        """How the twins' gradients of a step are laid out."""
        return self.every_rank("local", self.micro_steps(step)[0])[0].layout

    def _mean(self, fresh: Local, step: int, layout: Layout) -> Ball:
        """The mean over the ranks of a step's gradients, added to what each rank still held of the step before."""
        form, world_size = self.form(layout), self.case.world_size
        # Where every micro-step is reduced, what is there already is reduced with it, each time
        # with its own roundings.
        rounds = self.case.accumulation if self.synchronised_each else 1
        passes = (
            self.case.accumulation
            + (rounds - 1) * (world_size + 1)
            + rounds * balls.COMPLEX_DIVISION * layout.complex_P
        )
        passes += 2 if self.declared.exactness in ROUNDOFF else 0  # Cast down and up again.
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
        """What a mean is multiplied by to give what is declared: 1, or the world size for a sum."""
        return self.case.world_size if self.declared.reduction == "sum" else 1

    def _most_entries(self, step: int) -> int:
        """Of how many entries a sparse gradient is kept as the sum at most: one for every sample of a step."""
        return sum(
            len(indices)
            for number in self.micro_steps(step)
            for indices in self.batches[number].indices
        )

    def _left(self, step: int, layout: Layout) -> Ball:
        """What a step left in place of its gradients, on every rank: as noted, or where they are hidden as they must be.

        Shape (W, P), or (P,) where it must be the same on all ranks.
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
        """The formats gradients are reduced in: their own, or the lower one declared."""
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
        """What the step gives in one process on the global batch, from the parameters the ranks held at its start.

        Raises:
            Unjudged: The ranks' parameters differ, evidence is missing, or the step is poisoned.
        """
        while len(self._truths) <= step:
            self._truths.append(self._truth(len(self._truths)))
        return self._truths[step]

    @cached_property
    def _optimization(self) -> Optimization:
        """The optimizer before the first step, in the state that was loaded, if one was."""
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
            raise NotAbout(f"step {poison.step} is poisoned")
        if self.case.penalty:
            raise NotAbout("a loss carries a penalty on gradients")
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
        found = [oracle.gradients(case, held_0, self.batch(number), scale) for number in numbers]
        found = (
            [replace(one, by_name={**one.by_name, **frozen}) for one in found] if frozen else found
        )
        fresh = _end_to_end(found, names, self.case.world_size)
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
                one.losses_W.centre.mean(),
                one.losses_W.radius.mean() + 2.0**-50 * np.abs(one.losses_W.centre).mean(),
                0.0,
            )
            for one in found
        )
        return Truth(losses, gradient, updated)

    def trainable(self, step: int) -> frozenset[str]:
        """Names of the parameters that are trained at a step."""
        at_first = frozenset(row[0] for row in self.evidence.ranks[0].structure_before if row[3])
        return (at_first | self.case.sometimes_frozen) - self.left_frozen(step)

    def left_frozen(self, step: int) -> frozenset[str]:
        """Names of the parameters that are frozen at a step and trained at others."""
        return (
            self.case.sometimes_frozen & self.case.frozen(step)
            if self.case.between_steps
            else frozenset()
        )

    def unused(self, step: int) -> tuple[frozenset[str], ...]:
        """Names of the trainable parameters that each rank does not use at a step, in none of its micro-steps."""
        trainable = self.trainable(step)
        model, ranks = self.case.model, range(self.case.world_size)
        return tuple(
            frozenset(
                trainable & (model.used(frozenset()) - model.used(self.case.never_used(rank, step)))
            )
            for rank in ranks
        )

    def _left_out(self, step: int, layout: Layout) -> NDArray[np.bool_] | None:
        """Elements that are frozen at a step, or that no rank uses and that have no gradient. Shape (P,); None for none."""
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
        """The parameters after the optimizer's step; shape (P,)."""
        if self.case.clip is not None:
            gradient = balls.clipped(gradient, self.case.clip, form)
        plan = self.case.at(step).optimizer
        start = Ball(start_P, np.zeros_like(start_P), balls.quantum_of(start_P))
        if not self.declared.main:
            return self._optimization.step(plan, start, gradient, form, left_out_P, entries)
        # What is held is the copy, rounded: the copy itself lies within one rounding of it, before
        # the step and after.
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
    """A step that moves nothing; neither its gradient nor its losses are known."""
    unknown = Ball(np.zeros(()), np.full((), np.inf), 0.0)
    return Truth(
        (unknown,) * micro_steps,
        Ball(gradient.centre, np.full_like(gradient.centre, np.inf), 0.0),
        Ball(start_P, np.zeros_like(start_P), balls.quantum_of(start_P)),
    )


def _end_to_end(found_K: list[oracle.Gradients], names: list[str], world_size: int) -> Local:
    """The oracle's gradients of a step's micro-steps, as sums, parameters end to end."""

    def flat(parts_K: list[dict[str, FloatArray]]) -> FloatArray:
        summed_WP: FloatArray = np.sum(
            [
                np.concatenate([parts[name].reshape(world_size, -1) for name in names], 1)
                for parts in parts_K
            ],
            axis=0,
        )
        return summed_WP

    balls_K = [found.by_name for found in found_K]
    quantum_P = np.repeat(
        [min(float(found[name].quantum) for found in balls_K) for name in names],
        [balls_K[0][name].centre[0].size for name in names],
    )
    return Local(
        flat([{name: ball.centre for name, ball in found.items()} for found in balls_K]),
        flat([{name: ball.radius for name, ball in found.items()} for found in balls_K]),
        flat(
            [
                {
                    name: found.entries.get(name, np.abs(ball.centre))
                    for name, ball in found.by_name.items()
                }
                for found in found_K
            ]
        ),
        quantum_P,
    )


@lru_cache(maxsize=64)
def form_of(layout: Layout) -> balls.Format:
    """The formats of a record's elements; kept, since a layout repeats over the steps of a case."""
    return balls.format_of(layout)


def flat_by_name(tensors: Tensors, layout: Layout) -> FloatArray:
    """A record's elements in another record's order; tensors it lacks count as zero. Shape (P,).

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
        found = tensors.by_name.get(slot.name, np.zeros(size)).ravel()
        if found.size != size and slot.dtype is not None:
            raise Unjudged(f"{slot.name!r} has {found.size} elements, expected {size}")
        pieces.append(found[:size])
    return np.concatenate(pieces)
