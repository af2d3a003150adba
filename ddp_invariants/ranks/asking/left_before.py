"""A state saved after an iteration was left (`situations.asking.left_before`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, continued, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.left_before import LeftBefore


@way("left before")
def left_before(
    situation: LeftBefore, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Leave an iteration after some items, save a state in the next one, and load it."""
    return continued(case, make, rank, left_after=situation.taken)
