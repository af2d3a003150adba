"""Tests of samplers with contracts of their own: declared, they are judged by what they promise."""

from pathlib import Path
from typing import Any

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.sampler_probe import of_sampler
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import ALL_RULES, judge
from ddp_invariants.processes.pool import Pool
from ddp_invariants.proof.catalogue import all_entries
from ddp_invariants.records.verdict import Inconclusive, NotJudged, violation_class
from ddp_invariants.situations.asking.from_the_group import FromTheGroup
from ddp_invariants.situations.asking.vast import Vast

SAMPLERS = """
import itertools
import torch

class Infinite:
    def __init__(self, data_source, rank, num_replicas, shuffle=True, seed=0):
        self.size, self.rank, self.world = len(data_source), rank, num_replicas
        if not 0 <= rank < num_replicas:
            raise ValueError("rank")
        self.shuffle, self.seed = shuffle, seed
    def stream(self):
        generator = torch.Generator().manual_seed(self.seed % 2**63)
        while self.size:
            if self.shuffle:
                yield from torch.randperm(self.size, generator=generator).tolist()
            else:
                yield from range(self.size)
    def __iter__(self):
        yield from itertools.islice(self.stream(), self.rank, None, self.world)

class InfiniteAlike(Infinite):
    def __iter__(self):
        yield from self.stream()

class Repeats:
    def __init__(self, dataset, rank, num_replicas, shuffle=True):
        if not 0 <= rank < num_replicas:
            raise ValueError("rank")
        self.size, self.rank, self.world = len(dataset), rank, num_replicas
        self.shuffle, self.epoch = shuffle, 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        order = (torch.randperm(self.size, generator=generator) if self.shuffle
                 else torch.arange(self.size)).repeat_interleave(3).tolist()
        return iter(order[self.rank::self.world][:len(self)])
    def __len__(self):
        return self.size // self.world

class RepeatsPastTheEnd(Repeats):
    def __iter__(self):
        return iter([self.size] * len(self))

class Megatron:
    def __init__(self, total_samples, consumed_samples, micro_batch_size, data_parallel_rank,
                 data_parallel_size):
        if not 0 <= data_parallel_rank < data_parallel_size:
            raise ValueError("rank")
        assert consumed_samples == 0
        self.total, self.size = total_samples, micro_batch_size
        self.rank, self.world = data_parallel_rank, data_parallel_size
    def __iter__(self):
        step = self.size * self.world
        for start in range(0, self.total - step + 1, step):
            first = start + self.rank * self.size
            yield list(range(first, first + self.size))

class Items:
    def __init__(self, iterable, rank, world_size):
        if not 0 <= rank < world_size:
            raise ValueError("rank")
        self.items = list(iterable)[rank::world_size]
    def __iter__(self):
        return iter({"text": item} for item in self.items)
"""


@pytest.fixture
def judged(make_trial: TrialMaker, tmp_path: Path) -> Any:
    """Return a function that certifies a sampler by rules, and returns what it was told."""
    (tmp_path / "samplers.py").write_text(SAMPLERS)

    def certify(name: str, **declares: Any) -> dict[str, str]:
        sampler = Sampler(f"{tmp_path}/samplers.py:{name}", declares=declares)
        told = {}
        for rule in ("SHARD-1", "SHARD-2", "SHARD-3", "SHARD-4", "SHARD-5", "SHARD-6"):
            trial = make_trial(sampler=sampler, cases=40)
            try:
                trial.certify(rule)
                told[rule] = "holds"
            except NotJudged:
                told[rule] = "not claimed"
            except Inconclusive as reason:
                told[rule] = str(reason)
            except violation_class(rule):
                told[rule] = "violated"
        return told

    return certify


def test_a_stream_without_end_is_judged_by_its_share_and_not_hung(judged: Any) -> None:
    """A declared stream holds every rule that applies; one that ignores the rank does not."""
    assert judged("Infinite", padding="endless") == {
        **dict.fromkeys(("SHARD-1", "SHARD-2", "SHARD-3", "SHARD-4"), "holds"),
        **dict.fromkeys(("SHARD-5", "SHARD-6"), "not claimed"),
    }
    assert judged("InfiniteAlike", padding="endless")["SHARD-3"] == "violated"


def test_a_stream_without_end_that_is_not_declared_is_told_and_does_not_hang(
    pool: Pool, tmp_path: Path
) -> None:
    """It was told as a rank that hung; the suite takes only so many items of it."""
    (tmp_path / "samplers.py").write_text(SAMPLERS)
    sampler = Sampler(f"{tmp_path}/samplers.py:Infinite")
    for case in (ShardCase(data=Data(samples=5)), ShardCase(data=Data(samples=5), loader=True)):
        findings = judge(pool.shards(case, sampler))
        assert findings["LIVE-1"].failure is None
        failure = findings["SHARD-1"].failure
        assert failure is not None
        assert failure.fact == "iterating does not end"


def test_repetitions_by_contract_are_not_accused_and_other_rules_are_judged(judged: Any) -> None:
    """Repeated augmentation repeats and leaves out; an index outside the dataset is still wrong."""
    assert judged("Repeats", padding="own") == {
        **dict.fromkeys(("SHARD-1", "SHARD-4", "SHARD-5"), "holds"),
        **dict.fromkeys(("SHARD-2", "SHARD-3", "SHARD-6"), "not claimed"),
    }
    assert judged("RepeatsPastTheEnd", padding="own")["SHARD-1"] == "violated"


def test_arguments_of_a_trainer_s_sampler_are_known(pool: Pool, tmp_path: Path) -> None:
    """The total and the consumed samples of a large trainer's sampler need no glue."""
    (tmp_path / "samplers.py").write_text(SAMPLERS)
    sampler = Sampler(f"{tmp_path}/samplers.py:Megatron", declares={"padding": "own"})
    assert "over a length as 'total_samples'" in pool.describe(sampler)["driven"]
    (answer, _) = pool.shards(
        ShardCase(world_size=2, data=Data(samples=10, batch_size=2)), sampler
    ).answers
    assert answer["shards"] == [[[0, 1, 4, 5], [2, 3, 6, 7]]]


def test_items_that_are_dicts_show_their_sample(pool: Pool, tmp_path: Path) -> None:
    """A shard of a stream yields records, whose first value is the sample."""
    (tmp_path / "samplers.py").write_text(SAMPLERS)
    sampler = Sampler(f"{tmp_path}/samplers.py:Items", declares={"padding": "none"})
    (answer, _) = pool.shards(ShardCase(world_size=2, data=Data(samples=5)), sampler).answers
    assert answer["shards"] == [[[0, 2, 4], [1, 3]]]


RIGHT = [entry.target for entry in all_entries() if entry.module == "contracts"]


@pytest.mark.parametrize("target", RIGHT, ids=lambda target: target.partition(":")[2])
def test_no_contract_of_its_own_is_accused(pool: Pool, make_trial: TrialMaker, target: str) -> None:
    """Every probe of a right sampler holds or is not offered, and no drawn case fails."""
    sampler = Sampler(target)
    probes = of_sampler(pool, sampler, pool.describe(sampler), 4)
    assert {probe.standing for probe in probes} <= {Standing.RIGHT, Standing.ABSENT}
    trial = make_trial(sampler=target)
    # All rules judge each case; the exhausted ones would also deal every small dataset.
    rules = [
        rule.id for rule in ALL_RULES.values() if rule.is_about_samplers and not rule.exhausted
    ]
    surveyed = trial.survey(rules, 40)
    assert surveyed.sighting is None
    assert surveyed.cases == 40
    assert trial.ledger["SHARD-1"].judged
    assert trial.ledger["SHARD-4"].judged


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("TurnsTheRest", ShardCase(2, Data(7, 2, True), (0, 1))),
        ("Curriculum", ShardCase(2, Data(20, 2, False), (0, 1))),
        ("RepeatsTenTimes", ShardCase(1, Data(190, 2, True), (0, 1))),
        ("DrawnByWeight", ShardCase(2, Data(20, 2, False), (0, 1))),
        ("SkipsToItsBlock", ShardCase(2, Data(20, 2, False), (0, 1), situations=(Vast(),))),
        ("NoneIsNotSharded", ShardCase(2, Data(20), situations=(FromTheGroup(),))),
        ("MinusOneIsNoRank", ShardCase(2, Data(7))),
    ],
)
def test_what_only_some_cases_show_is_not_accused(
    make_trial: TrialMaker, name: str, case: ShardCase
) -> None:
    """Each of these cases was once a violation."""
    trial = make_trial(sampler=f"ddp_invariants.faults.contracts:{name}", scope=None)
    findings = trial.findings(trial.scope.fit_shards(case))
    assert trial.failures(findings, case) == []
    assert findings["SHARD-1"].compared
