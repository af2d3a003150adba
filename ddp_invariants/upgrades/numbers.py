"""The numbers of two sides' training runs, compared bit by bit and within the oracle's bounds."""

from collections.abc import Iterator

import numpy as np

from ddp_invariants.implementation.declarations import Declarations
from ddp_invariants.invariants.compare import parted
from ddp_invariants.invariants.recorded import flat_by_name
from ddp_invariants.invariants.rule import Unjudged
from ddp_invariants.invariants.view import EvidenceView
from ddp_invariants.records.evidence import Moment, TrainingEvidence
from ddp_invariants.upgrades.difference import Difference

STAGES: tuple[tuple[Moment, str], ...] = (
    ("built", "construction"),
    ("built buffers", "construction"),
    ("wrapped", "initialisation"),
    ("wrapped buffers", "initialisation"),
    ("forward", "forward"),
    ("forward buffers", "forward"),
    ("drawn", "random numbers"),
    ("loss", "forward"),
    ("local", "local gradient"),
    ("reduced", "reduced gradient"),
    ("updated", "optimizer"),
    ("left buffers", "forward"),
    ("state", "optimizer"),
    ("restored", "saving and loading"),
    ("restored buffers", "saving and loading"),
    ("restored state", "saving and loading"),
)
"""Moments in the order of a step, each with the stage that computed the recorded values."""
_OF_MICRO_STEPS = ("drawn", "loss", "local")


def differing_numbers(
    old: TrainingEvidence, new: TrainingEvidence, declared: Declarations, *, broken: bool
) -> Iterator[Difference]:
    """Yield the first tensors whose bits differ, in the order of a run.

    No bound is known for values that are not finite, or if ranks disagreed before. Then the rules
    decide whether numbers may differ: `broken` is true if a rule holds on one side only. A rounding
    is reported once per stage, and later stages are compared too.
    """
    rounded: set[str] = set()
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
                    difference = parted(old_tensors, new_tensors, "the old side has")
                    if difference is None:
                        continue
                    if [slot.dtype for slot in old_tensors.layout.slots] != [
                        slot.dtype for slot in new_tensors.layout.slots
                    ]:
                        continue  # `_exactly` reports missing tensors and other dtypes.
                    within = _both_within(old, new, declared, moment, step)
                    within = not broken if within is None else within
                    if within and stage in rounded:
                        continue
                    rounded.add(stage)
                    words = difference.words.partition(", the old side has ")
                    yield Difference(
                        "rounding" if within else "number",
                        stage,
                        f"rank {rank} of {len(old.ranks)}, step {step}, {difference.place}",
                        words[2].partition(";")[0] or "other bits",
                        words[0],
                    )
                    if not within:
                        return


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


def _both_within(
    old: TrainingEvidence, new: TrainingEvidence, declared: Declarations, moment: Moment, step: int
) -> bool | None:
    """Return whether both sides lie within the oracle's bound, so that they differ by rounding.

    The result is None if this is not known. A loss or a local gradient counts as within if the
    gradients that follow from it are. The values at the start of a step, or loaded before it, are
    those that the previous step left. Before the first step nothing is computed, so nothing can be
    rounded.
    """
    if step > 0 and moment in _LEFT:
        moment, step = _LEFT[moment], step - 1
    if moment == "left buffers":
        # Buffers depend on the intermediate values of a forward, which have no derived bound.
        return None
    if moment not in ("loss", "local", "reduced", "updated", "state"):
        return False
    for side in (old, new):
        view = EvidenceView(side, declared)
        try:
            with np.errstate(all="ignore"):
                truth, layout = view.expected.truth(step), view.layout(step)
                ball = truth.updated if moment in ("updated", "state") else truth.gradient
                held = view.every_rank(
                    "updated" if moment in ("updated", "state") else "reduced", step
                )
                values = [flat_by_name(tensors, layout) for tensors in held]
        except (Unjudged, KeyError, ValueError):
            return None
        if not all(np.isfinite(held_P).all() for held_P in values):
            return None  # The run overflows; the rules decide whether it may.
        if any(
            held_P.shape != ball.centre.shape
            or not (np.abs(held_P - ball.centre) <= ball.radius).all()
            for held_P in values
        ):
            return False
    return True
