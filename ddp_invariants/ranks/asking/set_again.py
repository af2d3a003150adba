"""Several calls of `set_epoch` (`situations.asking.set_again`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.situations.asking.set_again import SetAgain


@way("set again")
def set_again(situation: SetAgain, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Set other epochs, then the last epoch twice, and iterate."""
    sampler = RankSampler(case, make, rank)
    if make.remade_each_epoch or not hasattr(sampler.sampler, "set_epoch"):
        return None
    for epoch in (*situation.before, case.epochs[-1], case.epochs[-1]):
        sampler.set_epoch(epoch)
    return Asked([sampler.indices()])
