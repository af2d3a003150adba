"""Distributed samplers that meet long datasets, many ranks, and large seeds and epochs.

Words: N dataset length, W world size, L indices per rank.
"""

import hashlib
from collections.abc import Iterator, Sized
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch

from ddp_invariants.reference.sampler import DistributedSampler

_ROUNDS = 4


class LazyPermutation(DistributedSampler):
    """Right: a Feistel network permutes single places, so no order is ever in memory."""

    # A running iterator computes each index for the epoch that is set at the time.
    declares: ClassVar[dict[str, Any]] = {"unsupported": ("set_meanwhile",)}

    def index_at(self, place: int) -> int:
        """Return the index at a place of the endless repetition of the order."""
        place %= self.length
        if not self.shuffle:
            return place
        half = max(1, -(-(self.length - 1).bit_length() // 2))
        while True:  # Walk on until the number lies within the dataset.
            left, right = place >> half, place & ((1 << half) - 1)
            for turn in range(_ROUNDS):
                text = f"{self.seed}/{self.epoch}/{turn}/{right}".encode()
                drawn = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
                left, right = right, left ^ drawn & ((1 << half) - 1)
            place = left << half | right
            if place < self.length:
                return place

    def __iter__(self) -> Iterator[int]:
        skip, self._resume_at = self._resume_at, 0
        for position in range(skip, len(self)):
            self.consumed = position + 1
            yield self.index_at(position * self.num_replicas + self.rank)
        self.consumed = 0


class NumpyPermutation(DistributedSampler):
    """Right: a numpy generator of (seed, epoch) permutes, and only seeds from 0 are accepted."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed is {seed}, expected at least 0")
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)

    def order(self) -> list[int]:
        if not self.shuffle:
            return super().order()
        drawn = np.random.default_rng([self.seed, self.epoch]).permutation(self.length)
        repeated: list[int] = np.resize(drawn, len(self) * self.num_replicas).tolist()
        return repeated


class FixedShards(DistributedSampler):
    """Right: each rank shuffles its own fixed shard, alike on all ranks, and declares no layout."""

    def order(self) -> list[int]:
        self.shuffle, shuffle = False, self.shuffle
        order, self.shuffle = super().order(), shuffle
        if not shuffle:
            return order
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        turns = torch.randperm(len(self), generator=generator).tolist()
        w = self.num_replicas
        return [order[turn * w + rank] for turn in turns for rank in range(w)]


# Faults.


class SixteenBits(DistributedSampler):
    """Only 16 bits of seed + epoch seed the shuffle (no public incident found).

    SHARD-5: only a part of the epoch counts; or SHARD-4: only a part of the seed counts.
    """

    def order(self) -> list[int]:
        self.seed, seed = (self.seed + self.epoch) % 2**16 - self.epoch, self.seed
        try:
            return super().order()
        finally:
            self.seed = seed


class SignedSixteenBits(DistributedSampler):
    """Below 65,536 samples, indices are kept in 16 bits, which have a sign (no public incident
    found).

    SHARD-1.
    """

    def order(self) -> list[int]:
        order = super().order()
        short = self.length < 2**16
        kept: list[int] = np.array(order).astype(np.int16).tolist() if short else order
        return kept


class LargestInt32(DistributedSampler):
    """The shuffle's seed is cut to the largest 32-bit integer (no public incident found).

    SHARD-5: the epoch is ignored; or SHARD-4: the seed is ignored.
    """

    def order(self) -> list[int]:
        self.seed, seed = min(self.seed + self.epoch, 2**31 - 1) - self.epoch, self.seed
        try:
            return super().order()
        finally:
            self.seed = seed


class LosesTheLastBlock(DistributedSampler):
    """Datasets above 1,000 samples are shuffled in blocks of 256, and the last block is lost
    (no public incident found).

    SHARD-2: samples are lost; or SHARD-3: overlap.
    """

    def order(self) -> list[int]:
        order = super().order()
        whole = self.length // 256 * 256
        if not self.shuffle or self.length <= 1000:
            return order
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        blocks = torch.randperm(whole // 256, generator=generator).tolist()
        kept = [index for block in blocks for index in range(block * 256, block * 256 + 256)]
        return [kept[i % whole] for i in range(len(order))]


class MaskOfRanks(DistributedSampler):
    """The rank is kept in six bits, so rank 64 reads the shard of rank 0
    (no public incident found).

    SHARD-2: yield the same indices; or SHARD-3: yield the same indices.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.rank = rank % 64


class PadsEightTimes(DistributedSampler):
    """At most seven copies of the order pad the ranks (pytorch#45324 mended for N * 2 < W only).

    SHARD-1: ranks yield different numbers of indices.
    """

    def order(self) -> list[int]:
        return list(islice(super().order(), self.length * 8))


class NeverGoesBack(DistributedSampler):
    """set_epoch ignores an epoch below the present one (no public incident found).

    SHARD-4: depends on the epochs before it.
    """

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(max(epoch, self.epoch))


class OneAtLeast(DistributedSampler):
    """With drop_last every rank gets at least one sample, although N < W leaves none
    (no public incident found).

    SHARD-2: with drop_last the shards do not hold; or SHARD-3: overlap.
    """

    def __len__(self) -> int:
        return max(1, super().__len__()) if self.length else super().__len__()
