"""A saved state that is loaded into a sampler in use (`situations.asking.rolled_back`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.resumption import Resumption
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.rolled_back import RolledBack


@way("rolled back")
def rolled_back(
    situation: RolledBack, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Load the state into a sampler that is in the middle of the next epoch."""
    if make.remade_each_epoch:
        return None  # The state would get a new sampler.
    states = Resumption(case, make, rank)
    saved = states.saved(states.begun(), at_start=not situation.begun) if states.possible else None
    if saved is None:
        return None
    used = states.new()
    used.set_epoch(states.epoch + 1)
    used.indices()
    used.leave_after(1)
    return states.goes_on(saved, used)
