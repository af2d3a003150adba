"""Two live iterators of one sampler (`situations.asking.interleaved`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.interleaved import Interleaved


@way("interleaved")
def interleaved(
    situation: Interleaved, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Let two iterators take turns, the first one some items ahead."""
    sampler = in_last_epoch(case, make, rank)
    # The second iterator is in the next epoch if the sampler counts.
    return None if sampler.counts else Asked(list(sampler.interleaved(situation.ahead)))
