"""One training case's evidence, with what several rules need computed once.

Suffixes: W ranks, P elements of all trainable parameters end to end.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ddp_invariants import balls, oracle
from ddp_invariants.balls import Ball
from ddp_invariants.evidence import FloatArray, Incident, Layout, Moment, Tensors, TrainingEvidence
from ddp_invariants.invariants.rule import Chapter, NotAbout, Unjudged

training = Chapter["Hearing"]()
"""All rules about training."""


@dataclass(frozen=True)
class Truth:
    """What single-process training gives at one step: ranks' mean loss, mean gradient and updated parameters (P,)."""

    loss: Ball
    gradient: Ball
    updated: Ball


class Hearing:
    """Evidence of a training case, as rules look at it."""

    def __init__(self, evidence: TrainingEvidence) -> None:
        self.evidence, self.case = evidence, evidence.case
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
            raise Unjudged(f"no evidence of {moment!r} at step {step}: {self.cut_short or 'a rank noted none'}")
        return tensors

    def steps(self, moment: Moment) -> range:
        """The steps that all ranks reached up to a moment.

        Raises:
            Unjudged: There is none.
        """
        self.every_rank(moment, 0)
        return range(next((step for step in range(self.case.steps) if self.noted(moment, step) is None), self.case.steps))

    @cached_property
    def clean_steps(self) -> int:
        """Steps before the first poisoned one: from there on numbers need not be finite."""
        return self.case.steps if self.case.poison is None else self.case.poison.step

    @cached_property
    def batches(self) -> list[oracle.Batch]:
        """Every rank's samples at each step."""
        return oracle.batches(self.case)

    def passes(self, step: int) -> int:
        """Backwards accumulated in a local gradient at a step: K of the rounding bound."""
        return 2 if self.case.zero_grad == "never" and step > 0 else 1

    def local_means(self, step: int) -> Ball:
        """What every rank must hold: the mean of the twins' gradients, plus what was left in place on purpose.

        Shape (P,), laid out like the twins' record.

        Raises:
            Unjudged: Evidence is missing, or a local gradient is not finite.
        """
        if step in self._means:
            return self._means[step]
        local = self.every_rank("local", step)
        centre_WP = np.stack([tensors.values_P for tensors in local])
        if not np.isfinite(centre_WP).all():
            raise Unjudged(f"a local gradient of step {step} is not finite")
        fresh = Ball(centre_WP, np.zeros_like(centre_WP), balls.quantum_of(centre_WP).min(0))
        self._means[step] = self._mean(fresh, step, local[0].layout)
        return self._means[step]

    def _mean(self, fresh_WP: Ball, step: int, layout: Layout) -> Ball:
        """The mean over the ranks of one backward's gradients, added to what each rank still held of the step before."""
        form, passes = form_of(layout), self.passes(step)
        if passes == 1:
            return balls.mean_over_ranks(fresh_WP.centre, fresh_WP.radius, np.abs(fresh_WP.centre), fresh_WP.quantum, form, 1)
        left_WP = np.stack([flat_by_name(tensors, layout) for tensors in self.every_rank("reduced", step - 1)])
        if not np.isfinite(left_WP).all():
            raise Unjudged(f"the gradients left from step {step - 1} are not finite")
        quantum_P = np.minimum(fresh_WP.quantum, balls.quantum_of(left_WP).min(0))
        return balls.mean_over_ranks(left_WP + fresh_WP.centre, fresh_WP.radius, np.abs(left_WP) + np.abs(fresh_WP.centre),
                                     quantum_P, form, passes)

    def truth(self, step: int) -> Truth:
        """What the step gives in one process on the global batch, from the parameters the ranks held at its start.

        Raises:
            Unjudged: The ranks' parameters differ, evidence is missing, or the step is poisoned.
        """
        while len(self._truths) <= step:
            self._truths.append(self._truth(len(self._truths)))
        return self._truths[step]

    @cached_property
    def _optimization(self) -> oracle.Optimization:
        return oracle.Optimization()

    def _truth(self, step: int) -> Truth:
        if step >= self.clean_steps:
            raise NotAbout(f"step {step} is poisoned")
        held = self.every_rank("forward", step)
        if any(tensors != held[0] for tensors in held[1:]):
            raise Unjudged(f"the ranks' parameters already differ when step {step} starts")
        if not np.isfinite(held[0].values_P).all():
            raise Unjudged(f"the parameters at the start of step {step} are not finite")
        found = oracle.gradients(self.case, held[0].by_name, self.batches[step])
        layout = self.every_rank("local", step)[0].layout
        names = [slot.name for slot in layout.slots if slot.dtype is not None]
        world_size = self.case.world_size
        found_of = [found.by_name[name] for name in names]
        quantum_P = np.repeat([ball.quantum for ball in found_of], [ball.centre[0].size for ball in found_of])
        local_WP = Ball(np.concatenate([ball.centre.reshape(world_size, -1) for ball in found_of], 1),
                        np.concatenate([ball.radius.reshape(world_size, -1) for ball in found_of], 1), quantum_P)
        gradient = self._mean(local_WP, step, layout)
        start_P = np.concatenate([held[0].by_name[name].ravel() for name in names])
        start = Ball(start_P, np.zeros_like(start_P), balls.quantum_of(start_P))
        updated = self._optimization.step(self.case, start, gradient, form_of(layout))
        losses_W = found.losses_W
        loss = Ball(losses_W.centre.mean(), losses_W.radius.mean() + 2.0**-50 * np.abs(losses_W.centre).mean(), 0.0)
        return Truth(loss, gradient, updated)


@lru_cache(maxsize=64)
def form_of(layout: Layout) -> balls.Format:
    """The formats of a record's elements; kept, since a layout repeats over the steps of a case."""
    return balls.format_of(layout)


def flat_by_name(tensors: Tensors, layout: Layout) -> FloatArray:
    """A record's elements in another record's order; tensors it lacks count as zero. Shape (P,).

    Raises:
        Unjudged: A tensor has another number of elements.
    """
    if tensors.layout is layout or ([slot.name for slot in tensors.layout.slots] == [slot.name for slot in layout.slots] \
            and tensors.layout.sizes == layout.sizes):
        return tensors.values_P
    pieces = [np.empty(0)]
    for slot, size in zip(layout.slots, layout.sizes, strict=True):
        found = tensors.by_name.get(slot.name, np.zeros(size)).ravel()
        if found.size != size and slot.dtype is not None:
            raise Unjudged(f"{slot.name!r} has {found.size} elements, expected {size}")
        pieces.append(found[:size])
    return np.concatenate(pieces)
