"""Ranks that are asked one after another (`situations.asking.one_by_one`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.situations.asking.one_by_one import OneByOne


@way("one by one")
def one_by_one(situation: OneByOne, case: ShardCase, make: SamplerMaker, rank: int) -> Asked:
    """Make one rank's sampler, and iterate all epochs."""
    del situation
    sampler, dealt = RankSampler(case, make, rank), []
    for epoch in case.epochs:
        sampler.set_epoch(epoch)
        dealt.append(sampler.indices())
    return Asked(dealt)
