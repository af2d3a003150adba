"""A dataset that consists of several (`situations.asking.concatenated`)."""

from typing import Any

from torch.utils import data

from ddp_invariants.cases.case import ShardCase
from ddp_invariants.ranks.asking.way import Asked, in_last_epoch, way
from ddp_invariants.ranks.driving.sampler import SamplerMaker
from ddp_invariants.situations.asking.concatenated import Concatenated


class _Numbered(data.ConcatDataset[int]):
    """Datasets end to end. Each sample is its own index, since a sampler may yield samples."""

    def __getitem__(self, index: int) -> int:
        # A `for` loop over a ConcatDataset asks for indices until there is none.
        if not 0 <= index < len(self):
            raise IndexError(index)
        return index


@way("concatenated")
def concatenated(
    situation: Concatenated, case: ShardCase, make: SamplerMaker, rank: int
) -> Asked | None:
    """Give the sampler two times the same dataset, and another one with the rest.

    The ranks share the first two without padding, in case a sampler pads each member by itself.
    """
    del situation
    samples, ranks = case.data.samples, case.world_size
    size = samples // (2 * ranks) * ranks
    if make.source_kind != "dataset" or make.scatters or not size:
        return None
    member: Any = range(size)
    rest = samples - 2 * size
    members: list[Any] = [member, member, *([range(rest)] if rest else [])]
    whole = _Numbered(members)
    return Asked([in_last_epoch(case, make.called(replaced={make.source: whole}), rank).indices()])
