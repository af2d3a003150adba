"""Arguments that are left out (`situations.asking.left_out`)."""

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.situations.asking.left_out import LeftOut


@way("left out")
def left_out(situation: LeftOut, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Make the sampler without its optional arguments, and with the signature's defaults."""
    del situation
    optional = {
        name: default
        for name, default in make.optional("shuffle", "drop_last", "seed").items()
        # With None the sampler chooses for itself, and may ask other ranks.
        if default is not None
    }
    if not optional:
        return None
    ways = [make.called(without=frozenset(optional)), make.called(replaced=optional)]
    got, wanted = (_of_last_epoch(case, other, rank) for other in ways)
    return Asked([got], [wanted])


def _of_last_epoch(case: ShardCase, make: SamplerMaker, rank: int) -> list[int]:
    sampler = RankSampler(case, make, rank)
    sampler.set_epoch(case.epochs[-1])
    return sampler.indices()
