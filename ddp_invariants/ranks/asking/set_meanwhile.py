"""A call of `set_epoch` while an iteration runs (`situations.asking.set_meanwhile`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.set_meanwhile import SetMeanwhile


@way("set meanwhile")
def set_meanwhile(
    situation: SetMeanwhile, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Set the next epoch in the middle of an iteration, end the iteration, and iterate once more."""
    sampler = in_last_epoch(case, make, rank)
    if make.remade_each_epoch or not hasattr(sampler.sampler, "set_epoch"):
        return None
    return Asked(
        [sampler.around(situation.taken, case.epochs[-1] + 1), sampler.indices()],
    )
