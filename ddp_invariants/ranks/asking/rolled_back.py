"""A saved state that is loaded into a sampler in use (`situations.asking.rolled_back`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, continued, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.rolled_back import RolledBack


@way("rolled back")
def rolled_back(
    situation: RolledBack, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Load the state into a sampler that is in the middle of the next epoch."""
    if make.remade_each_epoch:
        return None  # The state would get a new sampler.
    return continued(case, make, rank, used=True, begun=situation.begun)
