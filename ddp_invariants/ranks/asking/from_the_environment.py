"""Rank and world size from the environment (`situations.asking.from_the_environment`)."""

from dataclasses import replace

import torch.distributed as dist

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.from_the_environment import FromTheEnvironment


@way("from the environment")
def from_the_environment(
    situation: FromTheEnvironment, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Leave out rank and world size, in a process of a node of several, without a group."""
    if not make.place or dist.is_initialized():
        return None
    other = make.called(without=make.place, node=situation.node)
    got = in_last_epoch(case, other, rank).indices()
    alone = in_last_epoch(replace(case, world_size=1, situations=()), make, 0).indices()
    # Without a group, a process may be a world of its own.
    return Asked([got], [got] if got == alone else None)
