"""Samplers of shapes that public code has: without a shuffle argument, in batches, told a length."""

from pathlib import Path

import pytest
from stored import stored_violation

from conftest import Run, TrialMaker
from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.errors import LoadFailure
from ddp_invariants.export import script as export
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants.sampler_view import sharding
from ddp_invariants.processes.pool import Pool
from ddp_invariants.search.strategies import cases_for

FILE = """
import torch
from torch.utils.data import BatchSampler, DistributedSampler


def checked(num_replicas, rank):
    if not 0 <= rank < num_replicas:
        raise ValueError(f"rank {rank} of {num_replicas}")


class AlwaysShuffled(DistributedSampler):
    def __init__(self, dataset, num_replicas, rank, seed=0):
        super().__init__(dataset, num_replicas, rank, shuffle=True, seed=seed)


class IgnoresTheEpoch(AlwaysShuffled):
    def set_epoch(self, epoch):
        pass


class InOrder(DistributedSampler):
    def __init__(self, dataset, num_replicas, rank):
        super().__init__(dataset, num_replicas, rank, shuffle=False)


class Batches(BatchSampler):
    def __init__(self, dataset, num_replicas, rank, batch_size, shuffle=True, seed=0, drop_last=False):
        inner = DistributedSampler(dataset, num_replicas, rank, shuffle, seed, drop_last)
        super().__init__(inner, batch_size, drop_last)

    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)


class PaddedBatches(Batches):
    def __init__(self, dataset, num_replicas, rank, batch_size, shuffle=True, seed=0, drop_last=False):
        inner = DistributedSampler(dataset, num_replicas, rank, shuffle, seed)
        BatchSampler.__init__(self, inner, batch_size, drop_last)


class RepeatsTheFirstBatch(PaddedBatches):
    def __iter__(self):
        batches = list(super().__iter__())
        return iter([*batches[:-1], batches[0]] if self.drop_last and batches else batches)


class LosesAnIndex(Batches):
    def __iter__(self):
        batches = list(super().__iter__())
        return iter([*batches[:-1], batches[-1][:-1]] if batches and self.drop_last else batches)


class SizeIsWorld(DistributedSampler):
    def __init__(self, dataset, rank, size):
        super().__init__(dataset, size, rank)


class Told(DistributedSampler):
    def __init__(self, dataset, total_samples, num_replicas, rank, shuffle=True, seed=0):
        assert total_samples == len(dataset)
        super().__init__(dataset, num_replicas, rank, shuffle, seed)
"""


@pytest.fixture(name="file")
def file_(tmp_path: Path) -> str:
    """Return the path of the samplers."""
    path = tmp_path / "shapes.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "lacks", "judges_epochs"),
    [
        ("AlwaysShuffled", {"in_order", "drop_last"}, True),
        ("InOrder", {"shuffle", "drop_last"}, False),
        ("Batches", set(), True),
        ("PaddedBatches", set(), True),
        ("Told", {"drop_last"}, True),
    ],
)
def test_a_right_one_is_not_accused(
    make_trial: TrialMaker, pool: Pool, file: str, name: str, lacks: set[str], judges_epochs: bool
) -> None:
    """What it cannot do is known from its arguments, and from the orders of two epochs."""
    described = pool.describe(Sampler(f"{file}:{name}"))
    known = {"shuffle", "in_order", "drop_last", "set_epoch"}
    assert known & {*described["lacks"]} == lacks
    trial = make_trial(sampler=f"{file}:{name}", cases=60)
    for rule in ("SHARD-2", "SHARD-3", "SHARD-5", "SHARD-6"):
        if not trial.scope.excluded(rule):
            trial.certify(rule, cases_for(rule, trial.scope))
    assert all(trial.ledger[rule].seen == 0 for rule in sharding.rules)
    assert (trial.ledger["SHARD-5"].judged > 0) == judges_epochs


def test_a_size_beside_a_dataset_may_be_another_number(pool: Pool, file: str) -> None:
    """Tutorials call the world size so."""
    with pytest.raises(LoadFailure, match="it requires size, for which no value is known"):
        pool.describe(Sampler(f"{file}:SizeIsWorld"))


def test_a_script_knows_both_meanings_of_drop_last(pool: Pool, run: Run, file: str) -> None:
    """A right batch sampler passes the script of a wrong one."""
    case = ShardCase(2, Data(14, 4, drop_last=True))
    text = export.script(
        pool, stored_violation(pool, case, "SHARD-2", sampler=f"{file}:LosesAnIndex")
    )
    status, output = run(text)
    assert status == 1, output
    assert "6 distinct indices, expected 8 or 14" in output
    for right in ("Batches", "PaddedBatches"):
        status, output = run(text.replace(":LosesAnIndex'", f":{right}'"))
        assert status == 0, output


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("IgnoresTheEpoch", "SHARD-5"),
        ("LosesAnIndex", "SHARD-2"),
        ("RepeatsTheFirstBatch", "SHARD-2"),
    ],
)
def test_a_wrong_one_is_accused(make_trial: TrialMaker, file: str, name: str, rule: str) -> None:
    """A sampler that always shuffles must heed the epoch, and batches may lose only a short one."""
    trial = make_trial(sampler=f"{file}:{name}", cases=60)
    with pytest.raises(AssertionError, match=f"{rule} violated"):
        trial.certify(rule, cases_for(rule, trial.scope))
