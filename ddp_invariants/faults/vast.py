"""Distributed samplers that hold no list of the indices, so that a dataset may be of any length.

Words: N dataset length, W world size, L indices per rank.
"""

from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import Sampler

_32_BITS = 2**32


class LazyBlocks(Sampler[int]):
    """Right: rank r yields the r-th block of L indices in order, and never shuffles."""

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, drop_last: bool = False
    ) -> None:
        if num_replicas < 1 or not 0 <= rank < num_replicas:
            raise ValueError(f"rank is {rank}, expected one of {num_replicas}")
        self.length, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.drop_last = drop_last

    def __len__(self) -> int:
        n, w = self.length, self.num_replicas
        return n // w if self.drop_last else -(-n // w)

    def first_place(self) -> int:
        """Return the place at which the rank's block begins."""
        return self.rank * len(self)

    def __iter__(self) -> Iterator[int]:
        first = self.first_place()
        for place in range(first, first + len(self)):
            yield place % self.length


# Faults.


class BlocksIn32Bits(LazyBlocks):
    """The place at which a block begins is kept in 32 bits (no public incident found).

    SHARD-4: lengths and first indices do not fit together.
    """

    def first_place(self) -> int:
        return super().first_place() % _32_BITS


class LenInFloat32(LazyBlocks):
    """The length of a share goes through float32 (no public incident found).

    SHARD-4: lengths and first indices do not fit together.
    """

    def __len__(self) -> int:
        return int(np.float32(super().__len__()))
