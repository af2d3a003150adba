"""A process group that is a part of all processes (`situations.asking.in_a_group`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker, every_second
from ddp_invariants.situations.asking.in_a_group import InAGroup


@way("in a group")
def in_a_group(situation: InAGroup, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Leave out rank and world size, and pass the group."""
    del situation
    if not make.place or not make.takes_group:
        return None
    with every_second(rank, case.world_size) as group:
        other = make.called(without=make.place, replaced={make.group: group})
        return Asked([in_last_epoch(case, other, rank).indices()])
