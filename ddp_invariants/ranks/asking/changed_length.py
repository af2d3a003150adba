"""A dataset whose length changes between two epochs (`situations.asking.changed_length`)."""

from collections.abc import Sequence

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.ranks.rank_sampler import RankSampler
from ddp_invariants.situations.asking.changed_length import ChangedLength


class _Dataset(Sequence[int]):
    """Numbered samples, whose count may be set."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> int:  # type: ignore[override]  # no slices
        return range(self.samples)[place]


@way("changed length")
def changed_length(
    situation: ChangedLength, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Iterate the first epoch, change the dataset's length, and iterate the last epoch.

    `len` is asked afterwards only, because a sampler may read the length when an iteration begins.
    """
    before, after = case.data.samples, situation.samples(case)
    if make.source_kind != "dataset" or make.remade_each_epoch or before == after:
        return None
    if make.takes("samples"):  # The sampler was told the old length.
        return None
    dataset = _Dataset(before)
    sampler = RankSampler(case, make.called(replaced={make.source: dataset}), rank)
    if sampler.counts:  # A new sampler for the last epoch would see the new length alone.
        return None
    sampler.set_epoch(case.epochs[0])
    sampler.indices()
    dataset.samples = after
    sampler.set_epoch(case.epochs[-1])
    got, length = sampler.indices(), sampler.length()
    return Asked([got, [] if length is None else [length]])
