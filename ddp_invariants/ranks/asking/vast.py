"""A dataset too long for any list of its indices (`situations.asking.vast`)."""

from itertools import islice

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.limits import Exceeded, bounded, ends_in_time
from ddp_invariants.ranks.rank_sampler import made
from ddp_invariants.ranks.training.recorder import is_out_of_memory
from ddp_invariants.situations.asking.vast import Vast

_TAKEN = 8
_SECONDS, _BYTES = 0.5, 128 << 20
"""The most processor time and memory of an answer. A sampler that needs more makes a list."""
_MOST = 1
"""Seconds after which a sampler is asked nothing, since it loops where no signal reaches Python."""


@way("vast")
def vast(situation: Vast, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Ask for `len` and the first items of the last epoch; `len` only if it counts indices.

    A sampler that makes a list of all indices when it is iterated is asked for `len` alone.
    """
    if make.scatters or not ends_in_time(lambda: _asked(situation, case, make, rank), _MOST):
        return None
    return _asked(situation, case, make, rank)


def _asked(situation: Vast, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Return the first items, the `len`, and whether the sampler was stopped before any item."""
    known, epoch, length = in_last_epoch(case, make, rank), case.epochs[-1], list[int]()
    stopped = list[int]()
    try:
        with make.surroundings(rank, case.world_size), bounded(_SECONDS, _BYTES):
            sampler = made(case, make, case.world_size, rank, epoch, samples=situation.length)
            if not make.remade_each_epoch and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            counted = hasattr(sampler, "__len__") and not known.in_batches
            length = [len(sampler)] if counted else []
            items = list(islice(sampler, _TAKEN))
    except Exceeded:
        items, stopped = [], [1]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        items, stopped = [], [1]
    return Asked([known.flat(items), length, stopped]) if items or length else None
