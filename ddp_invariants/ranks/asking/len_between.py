"""Calls of `len` around an iteration (`situations.asking.len_between`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.len_between import LenBetween


@way("len between")
def len_between(
    situation: LenBetween, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Call `len` before, during and after an iteration, and before another epoch is set."""
    del situation
    sampler = in_last_epoch(case, make, rank)
    if not hasattr(sampler.sampler, "__len__"):
        return None
    plain = sampler.indices()
    sampler.stay_in(case.epochs[-1])
    got, lengths = sampler.with_lengths()
    sampler.set_epoch(case.epochs[-1] + 1)
    sampler.with_lengths()
    sampler.set_epoch(case.epochs[-1])
    return Asked([got, lengths, sampler.indices()], [plain, [lengths[0]] * len(lengths), plain])
