"""Systematic shifts: roundings that all move the same way are no roundings.

A rounding moves a number up as often as down. A changed constant moves all numbers the same way, as
`clip_grad_norm_` does with another epsilon. One case cannot tell the two apart, so the case of a
rounding runs again with other numbers, and a sign test judges the signs of all runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.formats import ROUNDOFF, FloatArray
from ddp_invariants.errors import CaseError
from ddp_invariants.records.evidence import Layout, Moment, TrainingEvidence
from ddp_invariants.upgrades.difference import Difference
from ddp_invariants.upgrades.numbers import places

CHANCE = 1e-9
"""The largest probability with which mere roundings are called a shift, as for rules by chance."""
RUNS = 64
"""Runs with other numbers. 31 signs that agree are less probable than `CHANCE`."""


class Movement(NamedTuple):
    """The movement of the first numbers that differ in a run.

    Attributes:
        signs: The number of elements that grew, less the number of those that shrank.
        change: The sum of the changes of magnitude.
        size: The sum of the old magnitudes, of the tensors in which an element changed.
        unit: The unit in the last place of a number near 1, in the dtype of the numbers.
    """

    signs: int
    change: float
    size: float
    unit: float


def other_numbers(case: TrainingCase) -> Iterator[TrainingCase]:
    """Yield a case with other numbers.

    The steps are long, so that a shift of an update exceeds the roundings of the parameters.
    """
    for seed in range(RUNS):
        try:
            yield replace(
                case,
                values="real",
                seed=seed,
                log2_scale=0,
                optimizer=replace(case.optimizer, log2_lr=0),
            )
        except CaseError:  # The case is only possible with the numbers it has.
            return


def movement(old: TrainingEvidence, new: TrainingEvidence, stage: str) -> Movement | None:
    """Return the movement of the first numbers that differ at a stage; None if none differ.

    Of an optimizer's step, the movement is that of the update, not of the parameters.
    """
    place = next((each for each in places(old, new) if each.stage == stage), None)
    if place is None:
        return None
    values = []
    for side in (old, new):
        tensors = side.ranks[place.rank].tensors[place.moment, place.number]
        values.append(tensors.values_P - _before(side, place.moment, place.step, place.rank))
    with np.errstate(all="ignore"):
        change = np.abs(values[1]) - np.abs(values[0])
        known = np.isfinite(change) & _in_moved_tensors(change, tensors.layout)
    unit = 2 * max(ROUNDOFF.get(dtype, 0.0) for dtype in tensors.layout.dtypes)
    signs = int(np.sign(change[known]).sum())
    return Movement(signs, float(change[known].sum()), float(np.abs(values[0][known]).sum()), unit)


def _in_moved_tensors(change_P: FloatArray, layout: Layout) -> NDArray[np.bool_]:
    """Return True for all elements of the tensors in which an element changed. Shape (P,)."""
    ends = zip(layout.starts, layout.starts[1:], strict=False)
    return np.repeat([bool((change_P[start:end] != 0).any()) for start, end in ends], layout.sizes)


def _before(side: TrainingEvidence, moment: Moment, step: int, rank: int) -> FloatArray | float:
    """Return the values that a step started from; 0 for values that do not start from others."""
    started = side.ranks[rank].at("forward", step) if moment == "updated" else None
    return 0.0 if started is None else started.values_P


def shifted(difference: Difference, movements: Iterable[Movement | None]) -> Difference | None:
    """Return a rounding as a shift; None if its movements are those of a rounding.

    A shift is improbable as chance, and is larger than a unit in the last place: a constant that is
    rounded otherwise, as in a product with a reciprocal, can shift every number by that unit.

    Args:
        difference: The rounding.
        movements: The movements of the runs with other numbers.
    """
    moved = [each for each in movements if each is not None and each.signs]
    grown = sum(each.signs > 0 for each in moved)
    count, most = len(moved), max(grown, len(moved) - grown)
    if not count or _by_chance(count, most) > CHANCE:
        return None
    size = sum(each.size for each in moved)
    relative = sum(each.change for each in moved) / size if size else 0.0
    if abs(relative) <= max(each.unit for each in moved):
        return None
    way = "larger" if grown == most else "smaller"
    where = (
        f"{way} in {most} of {count} runs with other numbers, by {abs(relative):.1e} of their size"
    )
    return replace(difference, kind="shift", cause=f"all {way}", where=where)


def _by_chance(count: int, most: int) -> float:
    """Return the probability that so many of some fair coins, or more, show the same side."""
    tail = sum(comb(count, number) for number in range(most, count + 1))
    return min(1.0, 2 * tail / float(2**count))
