"""An iteration that is left in the middle (`situations.asking.abandoned`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.abandoned import Abandoned


@way("abandoned")
def abandoned(situation: Abandoned, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Leave an iteration after some items, and iterate to the end."""
    sampler = in_last_epoch(case, make, rank)
    if sampler.counts:  # Nobody says whether the iteration that was left counts.
        return None
    sampler.leave_after(situation.taken)
    return Asked([sampler.indices()])
