"""Iterations without `set_epoch` (`situations.asking.unset_epoch`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.situations.asking.unset_epoch import UnsetEpoch


@way("unset epoch")
def unset_epoch(
    situation: UnsetEpoch, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Iterate a new sampler twice."""
    del situation
    if make.remade_each_epoch:
        return None
    sampler = RankSampler(case, make, rank)
    return Asked([sampler.indices(), sampler.indices()])
