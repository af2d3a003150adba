"""A resumed lhotse SimpleCutSampler skips only the cuts of its own rank, so it yields others again."""

import copy

from lhotse import CutSet, MonoCut
from lhotse.dataset.sampling import SimpleCutSampler


def make(rank):
    """Return the sampler of one of two ranks over eight cuts, one cut a batch."""
    cuts = CutSet.from_cuts(MonoCut(f"{number}", 0.0, 1.0, 0) for number in range(8))
    return SimpleCutSampler(cuts, max_cuts=1, world_size=2, rank=rank)


def names(batches):
    """Return the names of the cuts of some batches."""
    return [cut.id for batch in batches for cut in batch]


def remaining(running):
    """Yield the batches that are left; a `for` over the sampler would begin anew."""
    while True:
        try:
            yield next(running)
        except StopIteration:
            return


for rank in (0, 1):
    sampler = make(rank)
    running = iter(sampler)
    before = names([next(running), next(running)])
    state = copy.deepcopy(sampler.state_dict())
    rest = names(remaining(running))
    resumed = make(rank)
    resumed.load_state_dict(state)
    print(
        f"rank {rank}: after {before} the resumed sampler yields {names(resumed)}, expected {rest}"
    )
