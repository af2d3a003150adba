"""Right samplers that a rule has once accused, and wrong ones that are like them."""

import time
from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.situations.asking import WAYS
from ddp_invariants.situations.asking.rolled_back import RolledBack

FILE = Path(__file__).parents[1] / "helpers" / "right_samplers.py"


def shuffled(samples: int, batch_size: int = 1) -> Data:
    """Return a shuffled dataset."""
    return Data(samples, batch_size, shuffle=True)


@pytest.mark.parametrize(
    ("name", "case", "rule", "is_right"),
    [
        ("OwnBatchSize", ShardCase(2, Data(7, 1), loader=True), "SHARD-6", True),
        ("OneMoreOnTheFirstRank", ShardCase(2, Data(7, 1), loader=True), "SHARD-6", False),
        ("Chunks", ShardCase(1, shuffled(13)), "SHARD-4", True),
        ("Chunks", ShardCase(1, shuffled(13), (0, 3)), "SHARD-5", True),
        ("HoldsTheEpoch", ShardCase(2, shuffled(41), saved_after=3), "SHARD-9", False),
    ],
)
def test_a_right_sampler_is_not_accused(
    make_trial: TrialMaker, name: str, case: ShardCase, rule: str, *, is_right: bool
) -> None:
    """A wrong sampler of the same kind still is."""
    finding = make_trial(sampler=f"{FILE}:{name}").findings(case)[rule]
    assert (finding.failure is None) == is_right
    assert finding.unjudged in ("", "nothing to compare")


@pytest.mark.parametrize("name", ["Slices", "Elastic"])
@pytest.mark.parametrize("saved_after", [0, 1, 3])
def test_a_saved_state_is_loaded_in_every_way(
    make_trial: TrialMaker, name: str, saved_after: int
) -> None:
    """Right samplers go on from the state in each way that SHARD-9 judges."""
    trial = make_trial(sampler=f"ddp_invariants.faults.resumable:{name}")
    ways = [way() for way in WAYS if way.rule == "SHARD-9"]
    for situation in (*ways, RolledBack(begun=False)):
        case = ShardCase(2, shuffled(12), (1,), saved_after=saved_after, situations=(situation,))
        finding = trial.findings(case)["SHARD-9"]
        assert finding.failure is None, situation.words
        assert finding.compared


def test_an_epochs_start_is_told_in_words() -> None:
    """The words of the plain way are as short as before."""
    assert [RolledBack().words, RolledBack(begun=False).words] == [
        "rolled back",
        "rolled back to the epoch's start",
    ]


@pytest.mark.parametrize(
    ("fault", "rule", "epochs"),
    [
        ("IgnoresTheSeed", "SHARD-4", (0,)),
        ("IgnoresTheEpoch", "SHARD-5", (0, 3)),
        ("KeepsTheFirstOrder", "SHARD-5", (0, 3)),
    ],
)
def test_an_epoch_or_a_seed_that_is_ignored_is_still_wrong(
    make_trial: TrialMaker, fault: str, rule: str, epochs: tuple[int, ...]
) -> None:
    """A longer dataset has one order, too."""
    trial = make_trial(sampler=f"{FILE}:{fault}")
    for world_size in (1, 3):
        assert trial.findings(ShardCase(world_size, shuffled(13), epochs))[rule].failure


def test_many_ranks_are_not_asked_for_a_longer_dataset(make_trial: TrialMaker) -> None:
    """It would take longer than a sampler may. So short a dataset shows nothing of the seed."""
    trial = make_trial(sampler=f"{FILE}:IgnoresTheSeed")
    began = time.monotonic()
    finding = trial.findings(ShardCase(256, shuffled(53)))["SHARD-4"]
    assert finding.failure is None
    assert finding.unjudged == ""
    assert time.monotonic() - began < 10
