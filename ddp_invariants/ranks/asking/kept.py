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
    saved = states.saved(states.begun(), keep=True) if states.possible else None
    first, second = states.goes_on(saved, states.new()), states.goes_on(saved, states.new())
    if first is None or second is None:
        return None
    return Asked(first.got + second.got[1:], [*(first.wanted or ()), *(second.wanted or ())[1:]])
