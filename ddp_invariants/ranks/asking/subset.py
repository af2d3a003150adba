"""A dataset that is a part of another one (`situations.asking.subset`)."""

from torch.utils import data

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.subset import Subset


@way("subset")
def subset(situation: Subset, case: ShardCase, make: SamplerMaker, rank: int) -> Asked | None:
    """Give the sampler the second half of a dataset."""
    del situation
    if make.source_kind != "dataset" or make.scatters:
        return None
    samples = case.data.samples
    whole, half = range(2 * samples), range(samples, 2 * samples)
    part: data.Subset[int] = data.Subset(whole, half)  # type: ignore[arg-type]  # a range will do
    return Asked([in_last_epoch(case, make.called(replaced={make.source: part}), rank).indices()])
