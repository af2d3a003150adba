"""Samplers without `set_epoch`: each iteration is the next epoch."""

from pathlib import Path

import pytest
from stored import stored_violation

from conftest import Run, TrialMaker
from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.export import script as export
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.invariants.sampler_view import sharding
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.strategies import cases_for

COUNTED = "ddp_invariants.faults.counted:"
SHUFFLED = Data(samples=13, shuffle=True)
FILE = f"""
from {COUNTED[:-1]} import CountsItsIterations


def makes_one(dataset, num_replicas, rank, shuffle=True, seed=0):
    return CountsItsIterations(dataset, num_replicas, rank, shuffle, seed)


def yields(dataset, num_replicas, rank):
    yield from range(rank, len(dataset), num_replicas)


class Delegates:
    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0):
        from ddp_invariants.reference.sampler import DistributedSampler

        self.inner = DistributedSampler(dataset, num_replicas, rank, shuffle, seed)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        return iter(self.inner)


class Raises(CountsItsIterations):
    def __init__(self, *arguments, **named):
        raise RuntimeError("no data")


class Exits(CountsItsIterations):
    def __init__(self, dataset, num_replicas, rank):
        if num_replicas < 2:
            raise SystemExit("one rank is none")
        super().__init__(dataset, num_replicas, rank, shuffle=False)


class Loops(CountsItsIterations):
    def __init__(self, dataset, num_replicas, rank):
        while num_replicas < 2:
            pass
        super().__init__(dataset, num_replicas, rank)


class Draws(CountsItsIterations):
    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0):
        import torch

        torch.nn.Linear(2, 2)
        super().__init__(dataset, num_replicas, rank, shuffle, seed)


class CountsAtItsEnd(CountsItsIterations):
    passes = 0

    def generator(self):
        self.epoch = self.passes
        return super().generator()

    def __init__(self, dataset, num_replicas, rank, seed=0):
        super().__init__(dataset, num_replicas, rank, True, seed)

    def __iter__(self):
        yield from self.shard()
        self.passes += 1
"""


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("makes_one", True),
        ("yields", True),
        ("Delegates", False),
        ("Raises", True),
        ("Exits", True),
        ("Loops", True),
    ],
)
def test_a_sampler_counts_if_no_epoch_can_be_set(
    pool: Pool, tmp_path: Path, name: str, counted: bool
) -> None:
    """What a function returns shows it, and what an attribute of an object delegates to.

    One that cannot be made is asked for small epochs only.
    """
    path = tmp_path / "samplers.py"
    path.write_text(FILE, encoding="utf-8")
    described = pool.describe(Sampler(f"{path}:{name}"))
    told = "no set_epoch: each iteration is the next epoch" in described["driven"]
    assert told == counted
    assert counted == ({"set_epoch", "large_epoch"} <= {*described["lacks"]})


def test_one_that_counts_when_an_iteration_ends_is_seen_to_shuffle(
    pool: Pool, tmp_path: Path
) -> None:
    """The example is iterated to its end."""
    path = tmp_path / "samplers.py"
    path.write_text(FILE, encoding="utf-8")
    described = pool.describe(Sampler(f"{path}:CountsAtItsEnd"))
    assert "always shuffled" in described["driven"]


@pytest.mark.parametrize("name", ["Exits", "Draws"])
def test_a_right_one_that_is_made_in_an_unusual_way_is_not_accused(
    pool: Pool, tmp_path: Path, name: str
) -> None:
    """A constructor may refuse one rank, and may draw from a global generator."""
    path = tmp_path / "samplers.py"
    path.write_text(FILE, encoding="utf-8")
    case = ShardCase(2, Data(samples=13), epochs=(0, 2))
    findings = judge(pool.shards(case, Sampler(f"{path}:{name}")))
    assert not [each.failure for each in findings.values() if each.failure]
    assert findings["SHARD-4"].compared


@pytest.mark.parametrize("name", ["CountsItsIterations", "DrawsFromItsGenerator"])
def test_a_right_one_is_not_accused(make_trial: TrialMaker, name: str) -> None:
    """Epochs are asked for by iterating, also after a resumption, and in other ways."""
    trial = make_trial(sampler=COUNTED + name, cases=60)
    for rule in ("SHARD-2", "SHARD-5", "SHARD-9"):
        if not trial.scope.excluded(rule):
            trial.certify(rule, cases_for(rule, trial.scope))
    assert all(trial.ledger[rule].seen == 0 for rule in sharding.rules)
    assert trial.ledger["SHARD-5"].judged > 60
    assert bool(trial.ledger["SHARD-9"].judged) == (name == "CountsItsIterations")


@pytest.mark.parametrize(
    ("fault", "rule", "case", "words"),
    [
        (
            "ShufflesOnce",
            "SHARD-5",
            ShardCase(epochs=(0, 2), data=SHUFFLED),
            "epochs 0 and 2 have the same order",
        ),
        ("SharesOneGenerator", "SHARD-4", ShardCase(data=SHUFFLED), "when iterated again"),
        (
            "CountsOnEvenRanks",
            "SHARD-2",
            ShardCase(epochs=(1,), data=SHUFFLED),
            "are in no shard",
        ),
        (
            "LoadsNoCount",
            "SHARD-9",
            ShardCase(epochs=(1,), data=SHUFFLED, saved_after=1),
            "rank 0 goes on with",
        ),
    ],
)
def test_a_script_iterates_once_for_each_epoch(
    pool: Pool, run: Run, fault: str, rule: str, case: ShardCase, words: str
) -> None:
    """A script makes a sampler anew to ask for an epoch again."""
    text = export.script(pool, stored_violation(pool, case, rule, sampler=COUNTED + fault))
    status, output = run(text)
    assert status == 1, output
    assert words in output
    status, output = run(text.replace(f":{fault}'", ":CountsItsIterations'"))
    assert status == 0, output
    assert output.endswith("not reproduced\n")
