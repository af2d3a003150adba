"""Right samplers that a rule has once accused, and wrong ones that are like them."""

from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data

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
        ("Blocks", ShardCase(2, shuffled(41)), "SHARD-8", False),
    ],
)
def test_a_right_sampler_is_not_accused(
    make_trial: TrialMaker, name: str, case: ShardCase, rule: str, *, is_right: bool
) -> None:
    """A wrong sampler of the same kind still is."""
    finding = make_trial(sampler=f"{FILE}:{name}").findings(case)[rule]
    assert (finding.failure is None) == is_right
    assert finding.unjudged in ("", "nothing to compare")


def test_an_order_that_depends_on_the_number_of_ranks_proves_no_layout(
    make_trial: TrialMaker,
) -> None:
    """Without shuffle, it does."""
    trial = make_trial(sampler=f"{FILE}:OrderOfTheWorld")
    finding = trial.findings(ShardCase(2, shuffled(41)))["SHARD-8"]
    assert finding.failure is None
    assert "with one rank, the sampler may shuffle differently" in finding.unjudged
    assert trial.findings(ShardCase(2, Data(41, 1)))["SHARD-8"].compared == 42


@pytest.mark.parametrize(("rule", "epochs"), [("SHARD-4", (0,)), ("SHARD-5", (0, 3))])
def test_an_epoch_or_a_seed_that_is_ignored_is_still_wrong(
    make_trial: TrialMaker, rule: str, epochs: tuple[int, ...]
) -> None:
    """A longer dataset has one order, too."""
    fault = {"SHARD-4": "IgnoresTheSeed", "SHARD-5": "IgnoresTheEpoch"}[rule]
    trial = make_trial(sampler=f"{FILE}:{fault}")
    for world_size in (1, 3):
        assert trial.findings(ShardCase(world_size, shuffled(13), epochs))[rule].failure
