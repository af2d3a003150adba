"""Arguments by position (`situations.asking.positional`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.positional import Positional


@way("positional")
def positional(
    situation: Positional, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Give all arguments by position that the signature takes so."""
    del situation
    if not make.by_position:
        return None
    return Asked([in_last_epoch(case, make.called(positional=True), rank).indices()])
