"""Rank and world size from the process group (`situations.asking.from_the_group`)."""

from dataclasses import replace

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.from_the_group import FromTheGroup


@way("from the group")
def from_the_group(
    situation: FromTheGroup, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Leave out rank and world size, in a process that has both."""
    del situation
    if not make.place:
        return None
    other = make.called(without=make.place, asks=True)
    got = in_last_epoch(case, other, rank).indices()
    alone = in_last_epoch(replace(case, world_size=1, situations=()), make, 0).indices()
    # Without its rank, a sampler may be documented to yield all samples.
    return Asked([got], [got] if got == alone else None)
