"""A saved state that is kept in memory (`situations.asking.kept`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.resumption import Resumption
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.kept import Kept


@way("kept")
def kept(situation: Kept, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Keep a state itself until the epoch ends, and load it into two new samplers in turn."""
    del situation
    states = Resumption(case, make, rank)
    if not states.possible:
        return None
    saved = states.saved(states.begun(), keep=True)
    return states.goes_on(saved, states.new(), states.new())
