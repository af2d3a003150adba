"""A state that is saved again before the next iteration (`situations.asking.saved_again`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.resumption import Resumption
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.saved_again import SavedAgain


@way("saved again")
def saved_again(
    situation: SavedAgain, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Load the state into a new sampler, save that one's state, and load this one."""
    del situation
    states = Resumption(case, make, rank)
    saved = states.saved(states.begun()) if states.possible else None
    if saved is None:
        return None
    loaded = states.new()
    loaded.load(saved.state, states.epoch)
    return states.goes_on(saved._replace(state=loaded.saved_now()), states.new())
