"""The numbers of two sides' training runs, compared bit by bit and within the oracle's bounds."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants.compare import TensorDifference, unlike
from ddp_invariants.invariants.recorded import flat_by_name
from ddp_invariants.invariants.rule import Unjudged
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Moment, Slot, Tensors, TrainingEvidence
from ddp_invariants.upgrades.difference import Class, Difference

STAGES: tuple[tuple[Moment, str], ...] = (
    ("built", "construction"),
    ("built buffers", "construction"),
    ("wrapped", "initialisation"),
    ("wrapped buffers", "initialisation"),
    ("forward", "forward"),
    ("forward buffers", "buffers"),
    ("drawn", "random numbers"),
    ("loss", "forward"),
    ("local", "local gradient"),
    ("reduced", "reduced gradient"),
    ("updated", "optimizer"),
    ("left buffers", "buffers"),
    ("state", "optimizer"),
    ("restored", "saving and loading"),
    ("restored buffers", "saving and loading"),
    ("restored state", "saving and loading"),
)
"""Moments in the order of a step, each with the stage that computed the recorded values."""
_OF_MICRO_STEPS = ("drawn", "loss", "local")
Bound = Literal["within", "beyond", "unknown"]
"""The place of a difference: within the bounds of both sides, beyond one, or without a bound."""
_KINDS: dict[Bound, Class] = {"within": "rounding", "beyond": "number", "unknown": "unbounded"}


class Place(NamedTuple):
    """A place where the numbers of two sides part.

    Attributes:
        moment: The moment.
        number: The number of the moment: a step or a micro-step.
        stage: The stage of the moment.
        step: The step.
        rank: The rank.
        difference: The first difference.
    """

    moment: Moment
    number: int
    stage: str
    step: int
    rank: int
    difference: TensorDifference


def differing_numbers(
    old: TrainingEvidence, new: TrainingEvidence, declared: Declarations, *, broken: bool
) -> Iterator[Difference]:
    """Yield the first tensors whose numbers differ, in the order of a run.

    A rounding is reported once per stage, and later stages are compared too. The same holds for
    numbers without a known bound.

    Args:
        old: The old side's answer.
        new: The new side's answer.
        declared: The declarations.
        broken: True if a rule about values holds on one side only. Then small differences, and
            those without a bound, follow from the failure and are not reported.
    """
    seen: set[tuple[Bound, str]] = set()
    for place in places(old, new):
        bound = _bound(old, new, declared, place)
        if (bound, place.stage) in seen or (broken and bound != "beyond"):
            continue
        seen.add((bound, place.stage))
        words = place.difference.words.partition(", the old side has ")
        yield Difference(
            _KINDS[bound],
            place.stage,
            f"rank {place.rank} of {len(old.ranks)}, step {place.step}, {place.difference.place}",
            words[2].partition(";")[0] or "other bits",
            words[0],
        )
        if bound == "beyond":
            return


def places(old: TrainingEvidence, new: TrainingEvidence) -> Iterator[Place]:
    """Yield every place where the numbers of two sides part, in the order of a run."""
    for step in range(old.case.steps):
        for moment, stage in STAGES:
            numbers = (
                range(step * old.case.accumulation, (step + 1) * old.case.accumulation)
                if moment in _OF_MICRO_STEPS
                else (step,)
            )
            for number in numbers:
                first, second = old.moment(moment, number), new.moment(moment, number)
                if first is None or second is None:
                    continue  # A side that did not reach the moment differs in how its run ends.
                for rank, (old_tensors, new_tensors) in enumerate(zip(first, second, strict=True)):
                    difference = unlike(old_tensors, new_tensors, "the old side has")
                    if difference is None:
                        continue
                    if [slot.dtype for slot in old_tensors.layout.slots] != [
                        slot.dtype for slot in new_tensors.layout.slots
                    ]:
                        continue  # `_exactly` reports missing tensors and other dtypes.
                    if _was_left(old, moment, step, rank) and _was_left(new, moment, step, rank):
                        continue  # Both sides kept what the step before had left.
                    yield Place(moment, number, stage, step, rank, difference)


OF_NO_NUMBERS = ("COMM", "LIVE", "MEM", "RNG", "GPU")
"""Rules that judge no values.

If such a rule holds on one side only, small differences are still roundings.
"""
_LEFT: dict[Moment, Moment] = {
    "forward": "updated",
    "forward buffers": "left buffers",
    "restored": "updated",
    "restored buffers": "left buffers",
    "restored state": "state",
}
"""The moment of the previous step that left the values of a later moment."""
_SAVED: dict[Moment, Moment] = {
    "restored": "saved",
    "restored buffers": "saved buffers",
    "restored state": "saved state",
}
"""The moment of an earlier run that saved the values which a run loads before its first step."""
_STARTED: dict[Moment, Moment] = {
    "forward": "restored",
    "forward buffers": "restored buffers",
}
"""The moment at which a run that loads values gets those of its first forward."""


def _was_left(side: TrainingEvidence, moment: Moment, step: int, rank: int) -> bool:
    """Return whether a rank's values are bitwise those that a step or a run before had left."""
    before = (
        [(_LEFT.get(moment), step - 1)]
        if step > 0
        else [(_SAVED.get(moment), 0), (_STARTED.get(moment), 0)]
    )
    now = side.ranks[rank].at(moment, step)
    assert now is not None
    return any(
        _equal(side.ranks[rank].at(left, number), now)
        for left, number in before
        if left is not None
    )


def _equal(before: Tensors | None, now: Tensors) -> bool:
    return (
        before is not None and before.bits == now.bits and before.layout.slots == now.layout.slots
    )


def _bound(
    old: TrainingEvidence, new: TrainingEvidence, declared: Declarations, place: Place
) -> Bound:
    """Return whether both sides lie within the oracle's bound, so that they differ by rounding.

    A loss or a local gradient counts as within if the gradients that follow from it are. Integers
    are never rounded. The values at the start of a step, or loaded before it, are those that the
    previous step left. Before the first step nothing is computed, so nothing can be rounded.
    """
    moment, step = place.moment, place.step
    slot = _slot(old, place)
    if slot is not None and slot.dtype is not None and "float" not in slot.dtype:
        return "beyond" if "complex" not in slot.dtype else "unknown"
    if moment in ("left buffers", "forward buffers", "restored buffers"):
        # Buffers depend on the intermediate values of a forward, which have no derived bound.
        return "unknown"
    judged: tuple[Moment, int] = (moment, step)
    if moment in ("forward", "restored") and step > 0:
        step -= 1  # The bounds are those of the values that the step before left.
    elif moment in ("loss", "local"):
        judged = ("reduced", step)
    elif moment == "state":
        judged = ("updated", step)
    elif moment not in ("reduced", "updated"):
        return "beyond"
    within = [_within(EvidenceView(side, declared), *judged, step) for side in (old, new)]
    if None in within:
        return "unknown"
    return "within" if all(within) else "beyond"


def _slot(side: TrainingEvidence, place: Place) -> Slot | None:
    tensors = side.ranks[place.rank].tensors
    layouts = (held.layout for (moment, _), held in tensors.items() if moment == place.moment)
    slots = (slot for layout in layouts for slot in layout.slots)
    return next((slot for slot in slots if slot.name == place.difference.name), None)


def _within(view: EvidenceView, moment: Moment, number: int, step: int) -> bool | None:
    """Return whether all ranks' values lie within the oracle's bound; None if that is unknown.

    Args:
        view: The side.
        moment: The moment of the values.
        number: The step in which they were recorded.
        step: The step whose bounds they must keep.
    """
    if moment == "updated" and view.declared.update == "own":
        return None  # What a step computes is not known.
    try:
        with np.errstate(all="ignore"):
            truth, layout = view.expected.truth(step), view.layout(step)
            ball = truth.gradient if moment == "reduced" else truth.updated
            held = view.every_rank(moment, number)
            values = [flat_by_name(tensors, layout) for tensors in held]
    except (Unjudged, KeyError, ValueError):
        return None
    if not all(np.isfinite(held_P).all() for held_P in values):
        return None  # The run overflows; the rules decide whether it may.
    return all(
        held_P.shape == ball.centre.shape
        and bool((np.abs(held_P - ball.centre) <= ball.radius).all())
        for held_P in values
    )
