"""All schedules of a small case: every moment at which each collective's result may arrive.

A rank learns of other ranks through the results of collectives alone. Its course is fixed by these
results, and by the moments at which they arrive among its own calls. If no choice of moments at
one rank changes anything, no choice at several ranks does: by induction over the collectives, each
rank gets what it got before. So the ranks are taken one at a time. At one rank, collectives that
are in flight together are varied together; those that are not are varied one after another.

A rank that asks for the state of a collective is not explored: its course depends on turns, too.
"""

from collections.abc import Iterator
from itertools import pairwise, product

from ddp_invariants.cases.case import Case, TrainingCase
from ddp_invariants.invariants.rule import UNDISTURBED
from ddp_invariants.records.evidence import TrainingEvidence
from ddp_invariants.situations.turns import Turns

MOST_RANKS = 3
"""The largest world whose schedules are all run."""
MOST_SCHEDULES = 64
"""The largest number of schedules that are all run."""

Flight = tuple[int, int]


def is_small(case: Case) -> bool:
    """Return whether all schedules of a case may be run, if they are not too many."""
    return (
        isinstance(case, TrainingCase)
        and 1 < case.world_size <= case.ranks_needed <= MOST_RANKS
        and case.poison is None
    )


def plain(case: TrainingCase) -> TrainingCase:
    """Return a case in its usual timing."""
    return case.without(*UNDISTURBED)


def late(case: TrainingCase) -> TrainingCase:
    """Return a case whose results all arrive when they are waited for.

    The flights of its collectives are the longest possible.
    """
    return case.with_situation(Turns(results="late"))


def all_schedules(evidence: TrainingEvidence) -> list[TrainingCase]:
    """Return a case once for each schedule; none if they are too many, or cannot all be known.

    Args:
        evidence: Of a simulated run of the case in which results arrive late (`late`).
    """
    case = evidence.case
    if evidence.incident is not None:
        return []
    schedules: list[TrainingCase] = []
    for rank, evidence_of_rank in zip(case.members, evidence.ranks, strict=True):
        if evidence_of_rank.flights is None:
            return []
        for lags in _all_lags(evidence_of_rank.flights):
            if len(schedules) == MOST_SCHEDULES:
                return []
            schedules.append(case.with_situation(Turns("behind", behind=rank, lags=lags)))
    return schedules


def _all_lags(flights: list[Flight]) -> Iterator[tuple[int, ...]]:
    """Yield all lags of one rank's collectives, without a lag first."""
    yield ()
    first = 0
    for together in _together(flights):
        for lags in product(*(range(end - start + 1) for start, end in together)):
            if any(lags):
                yield (0,) * first + lags
        first += len(together)


def _together(flights: list[Flight]) -> Iterator[list[Flight]]:
    """Yield the collectives that are in flight together; they are in the order of their starts."""
    if not flights:
        return
    group, end = [flights[0]], flights[0][1]
    for _, (starts, ends) in pairwise(flights):
        if starts >= end:
            yield group
            group = []
        group.append((starts, ends))
        end = max(end, ends)
    yield group
