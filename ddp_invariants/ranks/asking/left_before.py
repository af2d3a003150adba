"""A state saved after an iteration was left (`situations.asking.left_before`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.resumption import Resumption
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.left_before import LeftBefore


@way("left before")
def left_before(
    situation: LeftBefore, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Leave an iteration after some items, save a state in the next one, and load it."""
    states = Resumption(case, make, rank)
    if not states.possible:
        return None
    saving = states.begun()
    if saving.counts:  # Nobody says whether the iteration that was left counts.
        return None
    saving.leave_after(situation.taken)
    return states.goes_on(states.saved(saving), states.new())
