"""Schedules: which moments of arrival are tried for a rank's collectives."""

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.records.evidence import Incident, RankEvidence, TrainingEvidence
from ddp_invariants.search.schedules import MOST_SCHEDULES, all_schedules, late
from ddp_invariants.situations.capability import BASE
from ddp_invariants.situations.turns import Turns

Flights = list[tuple[int, int]] | None


def lags(*flights: Flights, incident: Incident | None = None) -> list[tuple[int, tuple[int, ...]]]:
    """Return the schedules for ranks with such flights: the rank behind, and its lags."""
    ranks = tuple(RankEvidence({}, flights=each) for each in flights)
    found = all_schedules(TrainingEvidence(late(BASE), ranks, incident))
    return [(turns.behind, turns.lags) for turns in map(turns_of, found)]


def turns_of(case: TrainingCase) -> Turns:
    """Return the turns of a case."""
    turns = case.get(Turns)
    assert turns is not None
    return turns


def test_collectives_in_flight_together_are_varied_together() -> None:
    """Two collectives of two calls each give all nine pairs of lags."""
    found = lags([(1, 3), (2, 4)], [])
    assert sorted(found) == [
        (0, ()),
        *((0, (a, b)) for a in range(3) for b in range(3) if (a, b) != (0, 0)),
        (1, ()),
    ]


def test_collectives_at_different_times_are_varied_one_after_another() -> None:
    """A collective that starts after the one before was taken adds its own choices."""
    assert lags([(1, 2), (3, 5)], []) == [(0, ()), (0, (1,)), (0, (0, 1)), (0, (0, 2)), (1, ())]


def test_a_case_with_too_many_schedules_has_none() -> None:
    """Nothing is claimed of a case of which only some schedules could be run."""
    assert lags([(1, 1 + MOST_SCHEDULES)], []) == []
    assert len(lags([(1, MOST_SCHEDULES - 1)], [])) == MOST_SCHEDULES


def test_a_rank_that_polls_or_hangs_has_no_schedules() -> None:
    """Its course depends on more than the moments of arrival."""
    assert lags([(1, 2)], None) == []
    assert lags([(1, 2)], [], incident=Incident("hung", {0: "waits"}, {}, 0.0, {})) == []
