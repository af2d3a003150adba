"""A sampler of another world in the same process (`situations.asking.after_another`)."""

from dataclasses import replace

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.situations.asking.after_another import AfterAnother

_LATER = 97
"""Epochs from the case's last epoch to one that nobody has asked for."""


@way("after another")
def after_another(situation: AfterAnother, case: ShardCase, make: SamplerMaker, rank: int) -> Asked:
    """Iterate an epoch with a sampler of another world size first, then with the rank's own."""
    epoch, indices = case.epochs[-1] + _LATER, list[int]()
    other = replace(case, world_size=situation.ranks, epochs=(epoch,))
    for asked, number in ((other, 0), (replace(case, epochs=(epoch,)), rank)):
        sampler = RankSampler(asked, make, number)
        sampler.set_epoch(epoch)
        indices = sampler.indices()
    return Asked([indices])
