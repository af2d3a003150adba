"""A copy of a sampler (`situations.asking.copied`)."""

from copy import copy, deepcopy

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.copied import Copied


@way("copied")
def copied(situation: Copied, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Copy the sampler once its epoch is set, and iterate the copy when the original has gone on."""
    del situation
    if make.remade_each_epoch:
        return None
    original = in_last_epoch(case, make, rank)
    sampler = copy(original)
    sampler.sampler = deepcopy(original.sampler)
    original.go_on_to(case.epochs[-1] + 1)
    return Asked([sampler.indices()])
