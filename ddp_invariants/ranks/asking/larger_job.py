"""A rank and a world size that are not those of the whole job (`situations.asking.larger_job`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker, second_of_two
from ddp_invariants.situations.asking.larger_job import LargerJob


@way("larger job")
def larger_job(
    situation: LargerJob, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Make and iterate a sampler in the second of the two processes that share its rank."""
    del situation
    if make.asks or make.scatters or make.names["world_size"] is None:
        return None
    with second_of_two(rank, case.world_size):
        return Asked([in_last_epoch(case, make, rank).indices()])
