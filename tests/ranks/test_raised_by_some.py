"""Tests of samplers that raise on some ranks: it is no refusal, since the other ranks go on."""

from pathlib import Path

import pytest

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.sampler_probe import of_sampler
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.invariants import judge
from ddp_invariants.processes.pool import Pool

SAMPLERS = """
class Shards:
    def __init__(self, dataset, rank, world_size):
        self.indices = list(dataset)[rank::world_size]
        if self.refuses(len(dataset), rank, world_size):
            raise ValueError("there are fewer samples than ranks")
    def __len__(self):
        return len(self.indices)
    def __iter__(self):
        return iter(self.indices)

class OnRanksWithout(Shards):
    def refuses(self, samples, rank, world_size):
        return rank >= samples

class Everywhere(Shards):
    def refuses(self, samples, rank, world_size):
        return world_size > samples
"""


@pytest.mark.parametrize(
    ("name", "standing", "fact"),
    [
        ("OnRanksWithout", Standing.WRONG, "some ranks raise and others do not"),
        ("Everywhere", Standing.REFUSED, ""),
    ],
)
def test_a_refusal_is_one_that_all_ranks_raise(
    pool: Pool, tmp_path: Path, name: str, standing: Standing, fact: str
) -> None:
    """A sampler that raises on the ranks without a sample was filed as one that refuses."""
    path = tmp_path / "samplers.py"
    path.write_text(SAMPLERS)
    sampler = Sampler(f"{path}:{name}")
    probes = of_sampler(pool, sampler, pool.describe(sampler), 4)
    short = next(probe for probe in probes if probe.capability == "short")
    assert short.standing is standing
    failure = judge(pool.shards(ShardCase(world_size=3, data=Data(samples=2)), sampler))[
        "LIVE-1"
    ].failure
    assert (failure.fact if failure is not None else "") == fact
    if failure is not None:
        assert failure.got == (
            "rank 2 raised ValueError: there are fewer samples than ranks; 1 of 3 ranks raise"
        )
