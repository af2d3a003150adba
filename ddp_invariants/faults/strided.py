"""Distributed samplers whose ranks take every W-th index of a shared order.

Words: N dataset length, W world size, L indices per rank. Most entries change
`reference.sampler.DistributedSampler`. The first ones are other right ways to shard an order.
"""

import random
from collections.abc import Iterator, Sized
from contextlib import suppress
from math import ceil
from typing import ClassVar

import numpy as np
import torch

from ddp_invariants.reference.sampler import DistributedSampler


class Strided(DistributedSampler):
    """Right: rank r takes order[r::W] of a permutation by seed and epoch, which starts over to fill
    the ranks.
    """


class Contiguous(DistributedSampler):
    """Right: rank r takes order[r * L : (r + 1) * L]."""

    declares: ClassVar[dict[str, str]] = {"layout": "contiguous"}

    def __iter__(self) -> Iterator[int]:
        skip, self._resume_at = self._resume_at, 0
        start, end = self.rank * len(self), (self.rank + 1) * len(self)
        for position, index in enumerate(self.order()[start + skip : end], start=skip + 1):
            self.consumed = position
            yield index
        self.consumed = 0


class _Dealt(DistributedSampler):
    """A base for samplers that say which places of the order belong to a rank."""

    def places(self) -> list[int]:
        return list(range(self.rank, len(self) * self.num_replicas, self.num_replicas))

    def __iter__(self) -> Iterator[int]:
        order, skip, self._resume_at = self.order(), self._resume_at, 0
        for position, place in enumerate(self.places()[skip:], start=skip + 1):
            self.consumed = position
            yield order[place]
        self.consumed = 0


class Blocks(_Dealt):
    """Right: blocks of two go round the ranks, and single indices at the end if L is odd."""

    def places(self) -> list[int]:
        whole = len(self) // 2 * 2
        pairs = [
            place
            for block in range(self.rank * 2, whole * self.num_replicas, 2 * self.num_replicas)
            for place in (block, block + 1)
        ]
        return pairs + [whole * self.num_replicas + self.rank] * (len(self) - whole)


class LastRankFirst(_Dealt):
    """Right: the order is handed out from the last rank to the first, so rank 0 takes order[W -
    1::W].
    """

    def places(self) -> list[int]:
        return list(
            range(
                self.num_replicas - 1 - self.rank, len(self) * self.num_replicas, self.num_replicas
            )
        )


class BackAndForth(_Dealt):
    """Right: the order is handed out forwards and backwards over the ranks in turn, as for samples
    sorted by length.
    """

    def places(self) -> list[int]:
        w = self.num_replicas
        return [
            turn * w + (w - 1 - self.rank if turn % 2 else self.rank) for turn in range(len(self))
        ]


def scattered(dataset: Sized, world_size: int, rank: int) -> list[int]:
    """Right: the list of indices that rank 0 would scatter to a rank: equal lengths, unshuffled."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")
    share = ceil(len(dataset) / world_size)
    plan = [
        [place % len(dataset) for place in range(r * share, (r + 1) * share)]
        for r in range(world_size)
    ]
    return plan[rank]


# The order.


class RanksShuffleDifferently(DistributedSampler):
    """The shuffle's seed contains the rank (mlcommons/training#625).

    SHARD-2: the ranks shuffle differently.
    """

    def order(self) -> list[int]:
        self.seed, seed = self.seed + 1000 * self.rank, self.seed
        try:
            return super().order()
        finally:
            self.seed = seed


class IgnoresEpoch(DistributedSampler):
    """set_epoch does nothing (pytorch#31771). SHARD-5: the epoch is ignored."""

    def set_epoch(self, epoch: int) -> None:
        del epoch


class KeepsTheFirstOrder(DistributedSampler):
    """The order is drawn once and kept (pytorch#31771).

    SHARD-4: an epoch's order depends on the epochs before it.
    """

    _order: list[int] | None = None

    def order(self) -> list[int]:
        self._order = self._order or super().order()
        return self._order


class EpochOnRankZero(DistributedSampler):
    """set_epoch takes effect on rank 0 only (no public incident found).

    SHARD-2: set_epoch reaches only some ranks.
    """

    def set_epoch(self, epoch: int) -> None:
        if self.rank == 0:
            super().set_epoch(epoch)


class EpochsAddUp(DistributedSampler):
    """set_epoch adds the epoch to the last one (no public incident found).

    SHARD-4: depends on the epochs before it.
    """

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(self.epoch + epoch)


class EpochsCountThemselves(DistributedSampler):
    """Every iteration is a new epoch, whatever set_epoch says (no public incident found).

    SHARD-4: iterating again in the same epoch.
    """

    def set_epoch(self, epoch: int) -> None:
        del epoch

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.epoch += 1


class EpochOneLate(DistributedSampler):
    """set_epoch takes effect one iteration late (no public incident found).

    SHARD-4: iterating again in the same epoch.
    """

    _next = 0

    def set_epoch(self, epoch: int) -> None:
        self._next = epoch

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        self.epoch = self._next
        return iter(indices)


class IgnoresSeed(DistributedSampler):
    """The seed is not passed on and is always 0 (huggingface/transformers#11406).

    SHARD-4: the seed is ignored.
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
        del seed
        super().__init__(dataset, num_replicas, rank, shuffle, drop_last=drop_last)


class IgnoresShuffle(DistributedSampler):
    """shuffle is not passed on, so the order is that of the dataset (no public incident found).

    SHARD-4: shuffle is ignored; or SHARD-4: the seed is ignored.
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
        del shuffle
        super().__init__(dataset, num_replicas, rank, shuffle=False, seed=seed, drop_last=drop_last)


class ShufflesUnasked(DistributedSampler):
    """The user's sampler is replaced by one that shuffles (Lightning#21131).

    SHARD-5: changes the order though shuffle is off.
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
        del shuffle
        super().__init__(dataset, num_replicas, rank, shuffle=True, seed=seed, drop_last=drop_last)


class ShufflesItsShard(DistributedSampler):
    """Each rank shuffles only its own shard, so it holds the same samples in every epoch
    (no public incident found).

    SHARD-8: is not the strided part of the order.
    """

    declares: ClassVar[dict[str, str]] = {"layout": "strided"}

    def order(self) -> list[int]:
        self.shuffle, shuffle = False, self.shuffle
        try:
            order = super().order()
        finally:
            self.shuffle = shuffle
        if shuffle:
            mine = order[self.rank :: self.num_replicas]
            random.Random(f"{self.seed}/{self.epoch}").shuffle(mine)
            order[self.rank :: self.num_replicas] = mine
        return order


class SamplesWithReplacement(DistributedSampler):
    """Indices are drawn with replacement instead of permuted (karpathy/nanoGPT#531).

    SHARD-2: drawn with replacement.
    """

    def order(self) -> list[int]:
        if not self.shuffle:
            return super().order()
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        drawn: list[int] = torch.randint(
            self.length, (len(self) * self.num_replicas,), generator=generator
        ).tolist()
        return drawn


class _Permuted(DistributedSampler):
    """A base for samplers that shuffle in another way."""

    def permutation(self) -> list[int]:
        raise NotImplementedError

    def order(self) -> list[int]:
        if not self.shuffle:
            return super().order()
        order = self.permutation()
        return [order[i % self.length] for i in range(len(self) * self.num_replicas)]


class GlobalGenerator(_Permuted):
    """The order is drawn from torch's global generator (QwenLM/Qwen3-VL#1971).

    SHARD-4: from the global generator of torch.
    """

    def permutation(self) -> list[int]:
        order: list[int] = torch.randperm(self.length).tolist()
        return order


class SeedsTheGlobalGenerator(_Permuted):
    """torch's global generator is seeded before each epoch and left so (pytorch-ignite 0.5.5).

    SHARD-4: it seeds the global generator of torch.
    """

    def permutation(self) -> list[int]:
        torch.manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(self.length).tolist()
        return order


class NumpysGenerator(_Permuted):
    """The order is drawn from numpy's global generator (OpenTau#501).

    SHARD-4: from the global generator of numpy.
    """

    def permutation(self) -> list[int]:
        order: list[int] = np.random.permutation(self.length).tolist()  # noqa: NPY002 - the fault
        return order


class PythonsGenerator(_Permuted):
    """The order is drawn from Python's module `random` (QwenLM/Qwen3-VL#1971).

    SHARD-4: from the global generator of random.
    """

    def permutation(self) -> list[int]:
        return random.sample(range(self.length), self.length)


class DrawsOn(_Permuted):
    """The sampler's own generator is seeded once and continues at every iteration
    (no public incident found).

    SHARD-4: iterating again in the same epoch.
    """

    def permutation(self) -> list[int]:
        if not hasattr(self, "_generator"):
            self._generator = torch.Generator().manual_seed(self.seed)
        order: list[int] = torch.randperm(self.length, generator=self._generator).tolist()
        return order


class SortsByHash(_Permuted):
    """Samples are sorted by the hash of a name, which Python salts in every process
    (no public incident found).

    SHARD-4: depends on the hash seed.
    """

    def permutation(self) -> list[int]:
        return sorted(
            range(self.length), key=lambda index: hash(f"{self.seed}/{self.epoch}/{index}")
        )


class RaisesInOneProcess(DistributedSampler):
    """Iterating raises under one hash seed and not under the other (no public incident found).

    SHARD-4: depends on the hash seed or on a global random generator.
    """

    def order(self) -> list[int]:
        names = {"layers.0.weight", "layers.0.bias"}
        if next(iter(names)) == "layers.0.bias" and self.length % 3 == 0:
            raise RuntimeError("unlucky")
        return super().order()


# Padding and the tail.


class NoPadding(DistributedSampler):
    """Shards are order[r::W] of the unpadded order, so some are shorter
    (huggingface/accelerate#4122).

    SHARD-1: no padding.
    """

    def order(self) -> list[int]:
        return super().order()[: self.length]


class EmptyShards(DistributedSampler):
    """Slices of ceil(N / W) of the unpadded order leave the last ranks little or nothing
    (huggingface/accelerate#961).

    SHARD-1: no padding.
    """

    def __iter__(self) -> Iterator[int]:
        return iter(
            self.order()[: self.length][self.rank * len(self) : (self.rank + 1) * len(self)]
        )


class PadsOnce(DistributedSampler):
    """Padding is one slice of the order, which is too short if N * 2 < W (pytorch#45324).

    SHARD-1: padded with one slice of itself.
    """

    def order(self) -> list[int]:
        order = super().order()[: self.length]
        return order + order[: len(self) * self.num_replicas - len(order)]


class _PadsWithOne(DistributedSampler):
    """A base for samplers that repeat one index to fill the ranks."""

    def repeated(self) -> int:
        return 0

    def order(self) -> list[int]:
        order = super().order()
        return order[: self.length] + [self.repeated()] * (len(order) - self.length)


class PadsWithTheFirst(_PadsWithOne):
    """All padding is index 0 (galilai-group/stable-pretraining#222).

    SHARD-3: all padding is index 0.
    """


class PadsWithTheLast(_PadsWithOne):
    """All padding is the last index (galilai-group/stable-pretraining#222).

    SHARD-3: all padding is index.
    """

    def repeated(self) -> int:
        return self.length - 1


class DropsTheTail(DistributedSampler):
    """Contiguous slices of N // W lose the tail, although drop_last is off
    (no public incident found).

    SHARD-2: samples are dropped although drop_last is off.
    """

    def __iter__(self) -> Iterator[int]:
        size = len(self)
        return iter(self.order()[self.rank * size : (self.rank + 1) * size])

    def __len__(self) -> int:
        return self.length // self.num_replicas


class IgnoresDropLast(DistributedSampler):
    """drop_last is not passed on, so the tail is padded (no public incident found).

    SHARD-2: as without drop_last: it is ignored.
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
        del drop_last
        super().__init__(dataset, num_replicas, rank, shuffle, seed)


class UnequalBatches(DistributedSampler):
    """Padding is left to the last rank's loader, so that rank's shard yields one index less than
    len says (no public incident found).

    SHARD-1: ranks yield different numbers of indices.
    """

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        return iter(
            indices[:-1]
            if self.rank == self.num_replicas - 1 and self.num_replicas > 1
            else indices
        )


class YieldsForEver(DistributedSampler):
    """Indices repeat without end (no public incident found). SHARD-1: it yields without end."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield self.rank % self.length


# Ranks.


class ShardShiftedByOne(DistributedSampler):
    """Contiguous shards start one index late, so the first index is lost
    (no public incident found).

    SHARD-1: off by one.
    """

    def __iter__(self) -> Iterator[int]:
        size = len(self)
        return iter(self.order()[self.rank * size + 1 : (self.rank + 1) * size + 1])


class RanksFromOne(DistributedSampler):
    """Ranks are counted from 1 on one side and from 0 on the other (no public incident found).

    SHARD-2: off by one.
    """

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[max(self.rank - 1, 0) :: self.num_replicas])


class IgnoresRank(DistributedSampler):
    """Every rank gets the shard of rank 0, because the rank is read from another place, where it is
    0 (Lightning#21122).

    SHARD-2: the rank is ignored.
    """

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[:: self.num_replicas])


class NotSharded(DistributedSampler):
    """Every rank reads the whole dataset (huggingface/datasets#5360).

    SHARD-3: every rank yields the whole dataset.
    """

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[: self.length])

    def __len__(self) -> int:
        return self.length


class ShardsTwice(DistributedSampler):
    """Each rank takes a shard of its shard (huggingface/accelerate#3520).

    SHARD-1: sharded twice.
    """

    def __iter__(self) -> Iterator[int]:
        mine = self.order()[self.rank :: self.num_replicas]
        return iter(mine[self.rank :: self.num_replicas])


class LocalRank(DistributedSampler):
    """Nodes of two ranks shard by the rank within the node, so all nodes see the same samples
    (no public incident found).

    SHARD-2: yield the same indices.
    """

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[self.rank % 2 :: self.num_replicas])


class LenOfTheDataset(DistributedSampler):
    """len is the dataset's, so progress bars and schedules run W times as long
    (no public incident found).

    SHARD-1: len is that of the whole dataset.
    """

    def order(self) -> list[int]:
        total = ceil(self.length / self.num_replicas) * self.num_replicas
        self.drop_last, drop_last = False, self.drop_last
        order = super().order()
        self.drop_last = drop_last
        return order[: self.length // self.num_replicas * self.num_replicas if drop_last else total]

    def __len__(self) -> int:
        return self.length


# Arguments.


class AcceptsAnyRank(DistributedSampler):
    """Arguments are not checked (no public incident found). SHARD-7: no argument is checked."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        with suppress(ValueError):
            super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.length, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch, self.consumed, self._resume_at = 0, 0, 0


class _Checked(AcceptsAnyRank):
    """A base for samplers that check only what `possible` says."""

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
        if not self.possible():
            raise ValueError(f"rank {rank} of {num_replicas}")

    def possible(self) -> bool:
        return 0 <= self.rank < self.num_replicas


class AcceptsANegativeRank(_Checked):
    """A rank is compared with W only, so -1, as of a process outside a group, is accepted
    (no public incident found).

    SHARD-7: not checked: rank below 0.
    """

    def possible(self) -> bool:
        return self.rank < self.num_replicas


class AcceptsRankW(_Checked):
    """The check of the rank is off by one, so rank W is accepted (no public incident found).

    SHARD-7: not checked: rank equal to world size.
    """

    def possible(self) -> bool:
        return 0 <= self.rank <= self.num_replicas and self.num_replicas > 0


class AcceptsAWorldOfNone(_Checked):
    """A world size of 0 is taken for "none given" and accepted (pytorch#196090).

    SHARD-7: not checked: world size 0.
    """

    def possible(self) -> bool:
        return not self.num_replicas or super().possible()


class AcceptsANegativeWorld(_Checked):
    """Only the absolute value of the world size is checked (pytorch#196090).

    SHARD-7: not checked: world size below 0.
    """

    def possible(self) -> bool:
        return 0 <= self.rank < abs(self.num_replicas)


class NeverEnds(DistributedSampler):
    """Iterating never ends and yields nothing
    (karpathy/nanochat's loader with fewer row groups than ranks).

    LIVE-1: a rank hung.
    """

    def __iter__(self) -> Iterator[int]:
        while self.length:
            pass
        yield 0
