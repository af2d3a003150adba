"""Streams in the workers of a DataLoader, without a claim, and samplers of groups."""

from pathlib import Path

import pytest

from conftest import TrialMaker
from ddp_invariants.cases.case import ShardCase
from ddp_invariants.cases.program import Data
from ddp_invariants.cases.shard_situation import ShardSituation
from ddp_invariants.discovery.result import Standing
from ddp_invariants.discovery.sampler_probe import of_sampler
from ddp_invariants.implementation.spec import Sampler
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.asking import Concatenated, DefaultDtype, InAGroup

PLACED = "ddp_invariants.faults.placed"
ASKED = ShardCase(world_size=3, data=Data(samples=13, shuffle=True), epochs=(1,))
REPEATS = """
from torch.utils.data import IterableDataset

class Repeats(IterableDataset):
    def __init__(self, dataset, num_replicas, rank):
        self.rest = range(rank, len(dataset) - len(dataset) % num_replicas, num_replicas)
    def __iter__(self):
        return iter(self.rest)
"""


def standing(pool: Pool, name: str, capability: str) -> Standing:
    """Return what a probe says of a sampler's capability."""
    sampler = Sampler(name)
    probes = of_sampler(pool, sampler, pool.describe(sampler), 4)
    return next(probe.standing for probe in probes if probe.capability == capability)


def test_a_stream_that_divides_its_samples_claims_it(pool: Pool, tmp_path: Path) -> None:
    """A stream of which each worker yields everything claims nothing, and a sampler has no workers."""
    assert standing(pool, f"{PLACED}:StreamOfIndices", "workers") is Standing.RIGHT
    assert standing(pool, f"{PLACED}:SlotsForAll", "workers") is Standing.WRONG
    assert standing(pool, f"{PLACED}:OfAGroup", "workers") is Standing.ABSENT
    (tmp_path / "repeats.py").write_text(REPEATS)
    assert standing(pool, f"{tmp_path}/repeats.py:Repeats", "workers") is Standing.ABSENT


@pytest.mark.parametrize("samples", [1, 7, 12, 24])
def test_workers_may_yield_other_samples_if_all_shards_are_right(
    make_trial: TrialMaker, samples: int
) -> None:
    """The workers of all ranks together must yield each sample, and as many on each rank."""
    case = ShardCase(world_size=3, data=Data(samples=samples), workers=2)
    right = make_trial(sampler=f"{PLACED}:StreamOfIndices").findings(case)
    assert right["SHARD-10"].failure is None
    assert right["SHARD-10"].compared > 0
    wrong = make_trial(sampler=f"{PLACED}:SlotsForAll").findings(case)["SHARD-10"].failure
    assert (wrong is None) == (samples in (12, 24))


@pytest.mark.parametrize("situation", [InAGroup(), DefaultDtype(), Concatenated()])
@pytest.mark.parametrize("name", [f"{PLACED}:OfAGroup", f"{PLACED}:ByMember", "torch"])
def test_right_samplers_hold_in_each_place(
    make_trial: TrialMaker, name: str, situation: ShardSituation
) -> None:
    """A group gives the same indices as its rank and size; members may be shuffled alone."""
    case = ShardCase(ASKED.world_size, ASKED.data, ASKED.epochs, situations=(situation,))
    finding = make_trial(sampler=name).findings(case)["SHARD-4"]
    assert finding.failure is None
    assert finding.compared > 0
