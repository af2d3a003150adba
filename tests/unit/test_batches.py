"""Samplers of batches, asked in this process."""

from pathlib import Path

import pytest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.implementation.declarations import SamplerDeclarations
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.shards import shards
from ddp_invariants.records.evidence import ShardEvidence

BALANCED = """
class Balanced:
    declares = {"padding": "own"}

    def __init__(self, dataset, num_replicas, rank):
        self.dataset, self.rank, self.epoch = dataset, rank, 0

    def __len__(self):
        return LENGTH

    def __iter__(self):
        middle = len(self.dataset) // 2 - self.epoch
        first, second = range(middle), range(middle, len(self.dataset))
        yield list(second if self.rank else first)

    def set_epoch(self, epoch):
        self.epoch = epoch
"""
"""A sampler with one batch for each rank, whose size depends on the epoch."""


@pytest.mark.parametrize(("length", "right"), [(1, True), (2, False)])
def test_batches_may_have_other_sizes_in_each_epoch(
    tmp_path: Path, length: int, right: bool
) -> None:
    """SHARD-1 compares a len in batches with the number of batches."""
    path = tmp_path / "balanced.py"
    path.write_text(BALANCED.replace("LENGTH", str(length)))
    case = ShardCase(data=Data(samples=8), epochs=(0, 2))
    answer = shards(case, SamplerMaker(Sampler(f"{path}:Balanced")), disturb=1)
    assert [len(shard) for epoch in answer["shards"] for shard in epoch] == [4, 4, 2, 6]
    evidence = ShardEvidence(case, (answer, answer))
    failure = judge(evidence, sampler=SamplerDeclarations(padding="own"))["SHARD-1"].failure
    assert (failure is None) == right
