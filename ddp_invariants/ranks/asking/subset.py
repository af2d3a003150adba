"""A dataset that is a part of another one (`situations.asking.subset`)."""

from typing import Any

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
    # An implementation may yield samples for indices. Each sample of the half is its own index.
    whole: Any = [*range(samples), *range(samples)]
    part: data.Subset[int] = data.Subset(whole, range(samples, 2 * samples))
    return Asked([in_last_epoch(case, make.called(replaced={make.source: part}), rank).indices()])
