"""The events of a comparison, as they occur."""

from typing import NamedTuple

from ddp_invariants.cases.case import Case
from ddp_invariants.upgrades.difference import Difference
from ddp_invariants.upgrades.outcome import ShrunkDifference


class Ran(NamedTuple):
    """A drawn case ran on both sides.

    Attributes:
        cases: Number of cases so far.
        of: Number of cases in all.
    """

    cases: int
    of: int


class Found(NamedTuple):
    """A new sort of difference showed.

    Attributes:
        difference: The difference.
        case: The case that showed it; None if it showed before any case was run.
        cases: Number of cases so far.
    """

    difference: Difference
    case: Case | None
    cases: int


class Tried(NamedTuple):
    """A simpler case runs, to shrink the case of a difference.

    Attributes:
        difference: The difference.
        runs: Number of runs so far.
        of: The largest number of runs.
    """

    difference: Difference
    runs: int
    of: int


class Shrunk(NamedTuple):
    """A difference has its smallest case.

    Attributes:
        entry: The difference with the case.
    """

    entry: ShrunkDifference


Event = Ran | Found | Tried | Shrunk
