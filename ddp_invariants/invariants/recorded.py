"""The recorded evidence of one training case, moment by moment, for all ranks.

A rank's twin is the unwrapped module with the same parameters, batch and random state.

Suffixes: W ranks, P elements of all trainable parameters end to end.
"""

from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.formats import LARGEST, ROUNDOFF, SMALLEST, FloatArray
from ddp_invariants.cases.program import Optimizer
from ddp_invariants.cases.situation import Situation
from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants.crashes import crash_of, is_crash
from ddp_invariants.invariants.rule import Unjudged
from ddp_invariants.oracle import balls
from ddp_invariants.oracle import training as oracle
from ddp_invariants.oracle.balls import Ball
from ddp_invariants.oracle.optimizer import Optimization
from ddp_invariants.records.evidence import Incident, Layout, Moment, Tensors, TrainingEvidence
from ddp_invariants.situations.evaluated_layer import EvaluatedLayer
from ddp_invariants.situations.group_options import GroupOptions


class RecordedTraining:
    """The evidence of a training case, with the declarations of its implementation."""

    def __init__(self, evidence: TrainingEvidence, declared: Declarations) -> None:
        self.evidence, self.case, self.declared = evidence, evidence.case, declared
        self._noted: dict[tuple[Moment, int], tuple[Tensors, ...] | None] = {}

    @property
    def incident(self) -> Incident | None:
        """The way the run ended, if it did not end by itself."""
        return self.evidence.incident

    @property
    def stopped(self) -> str:
        """The exceptions by which the suite ended runs of ranks; empty if there are none.

        The implementation is not to blame for them, or for the other ranks' reaction.
        """
        return "; ".join(
            f"rank {rank}: {each.raised.message}"
            for rank, each in enumerate(self.evidence.ranks)
            if each.raised is not None and each.raised.is_of_the_suite
        )

    @cached_property
    def cut_short(self) -> str:
        """The reason why the ranks did not finish the case; empty if they did."""
        if self.incident is not None:
            return f"the run {self.incident.kind}"
        crashed = crash_of(self.evidence) is not None
        for rank, evidence in enumerate(self.evidence.ranks):
            error = evidence.raised
            if error is not None and (is_crash(error) or not crashed):
                verb = "crashed with" if crashed else "raised"
                return (
                    f"rank {rank} {verb} {error.type} in {error.phase} of step "
                    f"{error.step}: {error.message}"
                )
        silent = [rank for rank, each in enumerate(self.evidence.ranks) if not each.answered]
        return f"rank {silent[0]} recorded nothing" if silent else ""

    def without(self, *removed: type[Situation]) -> TrainingEvidence | None:
        """Return the evidence of a second run of the case, without its situations of some classes.

        It is None if the case was run once, or a second time for a rule that leaves out others.
        """
        second = self.evidence.unperturbed
        if second is None or second.case != self.case.without(*removed):
            return None
        return second

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
        batch, drawn = self._with_running(number), self.case.draws
        if not drawn:
            return batch
        drawn_W = [tensors.by_name for tensors in self.every_rank("drawn", number)]
        shapes = {
            index: (batch.inputs_WBI.shape[1], self.case.model.widths()[index]) for index in drawn
        }
        path = self.case.model.path
        names = {path(index): shape for index, shape in shapes.items()}
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
                index: np.stack([by_name[path(index)] for by_name in drawn_W]) for index in drawn
            },
        )

    def _with_running(self, number: int) -> oracle.Batch:
        """Return every rank's samples at a micro-step, with the statistics of a norm in evaluation.

        No forward of the step moves these statistics.
        """
        batch, step = self.batches[number], number // self.case.accumulation
        plan = self.case.get(EvaluatedLayer)
        if plan is None or step < plan.since:
            return batch
        index = plan.layer
        if not self.case.model.layers[index].of_kind.norms_batches:
            return batch
        path = self.case.model.path(index)
        held_W = self.every_rank("forward buffers", step)
        names = [f"{path}.running_mean", f"{path}.running_var"]
        if any(name not in tensors.by_name for tensors in held_W for name in names):
            raise Unjudged(f"the statistics of {path} are not known when a forward starts")
        running = np.stack([[tensors.by_name[name] for tensors in held_W] for name in names])
        return replace(batch, running={index: running})

    def layout(self, step: int) -> Layout:
        """Return the layout of the twins' gradients of a step."""
        return self.every_rank("local", self.micro_steps(step)[0])[0].layout

    def form(self, layout: Layout) -> balls.Format:
        """Return the formats of the reduction: the gradients' own, or the lower format declared."""
        form, lower = form_of(layout), self.declared.exactness
        if lower not in ROUNDOFF:
            return form
        return replace(
            form,
            roundoff=np.maximum(form.roundoff, ROUNDOFF[lower]),
            smallest=np.maximum(form.smallest, SMALLEST[lower]),
            largest=np.minimum(form.largest, LARGEST[lower]),
        )

    @cached_property
    def cases(self) -> tuple[TrainingCase, ...]:
        """The case with the model and the optimizer as they are at each step."""
        return tuple(self.case.at(step) for step in range(self.case.steps))

    def plans(self, step: int) -> tuple[Optimizer, ...]:
        """Return the optimizer as it is at a step, for each group of parameters."""
        plan, found = self.cases[step].optimizer, self.case.get(GroupOptions)
        return (plan,) if found is None else (plan, found.of_second(plan, step))

    def group_of(self, name: str) -> int:
        """Return the number of a parameter's group in the optimizer."""
        return 0 if self.case.get(GroupOptions) is None else self._places[name] % 2

    @cached_property
    def _places(self) -> dict[str, int]:
        """The place of each parameter among all, by name; tied parameters have one name."""
        rows = self.evidence.ranks[0].structure_before
        names = [row.name for row in rows if row.kind == "parameter" and row.first_name == row.name]
        return {name: place for place, name in enumerate(names)}

    def trainable(self, step: int) -> frozenset[str]:
        """Return the names of the parameters that are trained at a step."""
        return self._trainable[step]

    @cached_property
    def _trainable(self) -> tuple[frozenset[str], ...]:
        """The names of the parameters that are trained at each step."""
        rows = self.evidence.ranks[0].structure_before
        ever = self.case.sometimes_frozen | {row.name for row in rows if row.requires_grad}
        return tuple(ever - frozen for frozen in self._left_frozen)

    def left_frozen(self, step: int) -> frozenset[str]:
        """Return the names of the parameters that are frozen at this step and trained at others."""
        return self._left_frozen[step]

    @cached_property
    def _left_frozen(self) -> tuple[frozenset[str], ...]:
        """The names of these parameters at each step."""
        sometimes, steps = self.case.sometimes_frozen, range(self.case.steps)
        return tuple(sometimes and sometimes & self.case.frozen(step) for step in steps)

    def unused(self, step: int) -> tuple[frozenset[str], ...]:
        """Return, for each rank, the names of the trainable parameters it does not use at a step.

        A parameter counts as unused if none of the step's micro-steps uses it.
        """
        return self._unused[step]

    @cached_property
    def _unused(self) -> tuple[tuple[frozenset[str], ...], ...]:
        """For each step and rank, the names of the trainable parameters that are not used."""
        case, steps, ranks = self.case, range(self.case.steps), range(self.case.world_size)
        used = case.model.used(frozenset()) if case.unused else frozenset[str]()

        def passed(rank: int, step: int) -> frozenset[str]:
            return used - case.model.used(case.never_used(rank, step)) if used else used

        return tuple(
            tuple(self.trainable(step) & passed(rank, step) for rank in ranks) for step in steps
        )

    def most_entries(self, step: int) -> int:
        """Return the largest number of entries of a sparse gradient: one per sample of a step."""
        return sum(
            len(indices)
            for number in self.micro_steps(step)
            for indices in self.batches[number].indices
        )

    @property
    def _shows_its_state(self) -> bool:
        """True if the optimizer's state has the form of torch's."""
        return not self.declared.zero and self.declared.optimizer == "replicated"

    @property
    def loads_unknown_state(self) -> bool:
        """True if the optimizer continues from a loaded state that has a form of its own."""
        loads = self.case.saved_by is not None and self.case.optimizer.stateful
        return loads and not self._shows_its_state

    @cached_property
    def loaded_optimization(self) -> Optimization:
        """The optimizer before the first step, with the loaded state if a state was loaded.

        Raises:
            Unjudged: A rank loaded a state, and its evidence lacks that of the optimizer.
        """
        if self.loads_unknown_state:
            raise Unjudged("the optimizer's state is loaded, and kept in a form of its own")
        if self.case.saved_by is None or not self._shows_its_state:
            return Optimization()
        loaded = self.every_rank("restored state", 0)
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
            of_all("momentum_buffer") or of_all("exp_avg"),
            of_all("exp_avg_sq"),
            of_all("max_exp_avg_sq"),
            steps,
        )

    def left_out(self, step: int, layout: Layout) -> NDArray[np.bool_] | None:
        """Return a mask of the elements that the optimizer leaves out at a step.

        These are frozen elements, and elements that no rank uses and that have no gradient. Shape
        (P,); None if there are none.
        """
        names = self.left_frozen(step)
        if self.case.unused and self.declared.gradients != "hidden":
            reduced, nowhere = (
                self.every_rank("reduced", step),
                frozenset.intersection(*self.unused(step)),
            )
            # Perhaps its owner alone has a gradient.
            names |= nowhere.difference(*(tensors.by_name for tensors in reduced))
        if not names:
            return None
        return np.repeat([slot.name in names for slot in layout.slots], layout.sizes)


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
