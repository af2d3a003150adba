"""A process group whose ranks do not follow one another in the default group."""

from dataclasses import replace

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.scope import Scope
from ddp_invariants.situations.capability import BASE

CASE = replace(BASE, outside=2, data=Data(samples=12, batch_size=2))


@pytest.mark.parametrize(
    ("world_size", "outside", "members"),
    [
        (2, 0, (0, 1)),
        (2, 1, (1, 2)),
        (2, 2, (1, 3)),
        (3, 2, (1, 3, 4)),
        (1, 3, (3,)),
        (4, 3, (1, 3, 5, 6)),
    ],
)
def test_ranks_that_train_nothing_come_first_and_then_between_the_others(
    world_size: int, outside: int, members: tuple[int, ...]
) -> None:
    """A case has as many members as its world has ranks, and rank 0 is no member of a subgroup."""
    assert replace(BASE, world_size=world_size, outside=outside).members == members


@pytest.mark.parametrize("case", [CASE, replace(CASE, world_size=3)], ids=["two", "three"])
@pytest.mark.parametrize("ddp", ["reference", "torch"])
def test_a_right_wrapper_trains_in_a_group_with_gaps(
    make_trial: TrialMaker, ddp: str, case: TrainingCase
) -> None:
    """The simulation and real ranks agree, and the ranks' collectives are compared."""
    trial = make_trial(ddp=ddp, scope=Scope(5))
    for findings in (trial.findings(case), trial.really(case)):
        assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
        assert findings["COMM-1"].compared
        assert findings["GRAD-2"].compared


def test_a_size_counted_from_end_to_end_shows_only_with_gaps(make_trial: TrialMaker) -> None:
    """Ranks 1 and 3 are counted as three."""
    trial = make_trial(ddp="ddp_invariants.faults.starts:CountsFromEndToEnd", scope=Scope())
    assert trial.findings(replace(CASE, outside=1))["GRAD-2"].failure is None
    failure = trial.findings(CASE)["GRAD-2"].failure
    assert failure is not None
    assert "one rank too many" in failure.perhaps


def test_groups_that_share_their_first_and_last_ranks_have_connections_of_their_own(
    make_trial: TrialMaker,
) -> None:
    """Ranks 1, 2 and 3 train together after ranks 1 and 3 have, in the same processes."""
    trial = make_trial(scope=Scope(5))
    three = replace(CASE, world_size=3, outside=1)
    for case in (three, CASE, three):
        findings = trial.really(case)
        assert {rule: each.failure for rule, each in findings.items() if each.failure} == {}
        assert findings["GRAD-2"].compared
