"""Distributed samplers that a program asks in unusual ways.

Words: N dataset length, W world size, L indices per rank.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sized
from typing import ClassVar, Self

import torch
import torch.distributed as dist

from ddp_invariants.faults._dataset import KeepsDataset
from ddp_invariants.reference.sampler import DistributedSampler


class FromTheGroup(DistributedSampler):
    """Right: rank and world size come from the process group, if they are left out."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None:
            num_replicas = self.own_size()
        if rank is None:
            rank = self.own_rank()
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)

    @classmethod
    def own_size(cls) -> int:
        """Return the number of processes."""
        return dist.get_world_size()

    @classmethod
    def own_rank(cls) -> int:
        """Return this process's rank."""
        return dist.get_rank()


class FromTheEnvironment(FromTheGroup):
    """Right: rank and world size that are left out come from the group, or else from a launcher's
    environment.
    """

    number = "RANK"

    @classmethod
    def own_size(cls) -> int:
        """Return the number of processes."""
        if dist.is_initialized():
            return super().own_size()
        return int(os.environ.get("WORLD_SIZE", "1"))

    @classmethod
    def own_rank(cls) -> int:
        """Return this process's rank."""
        if dist.is_initialized():
            return super().own_rank()
        return int(os.environ.get(cls.number, "0"))


class KeepsOrders(DistributedSampler):
    """Right: all samplers of a process share the orders of the epochs that were computed last."""

    orders: ClassVar[dict[tuple[int, int, bool], list[int]]] = {}

    def order(self) -> list[int]:
        """Return the epoch's indices of all ranks."""
        total = len(self) * self.num_replicas
        return self.extended(self._kept(), total - self.length)[:total]

    def _kept(self) -> list[int]:
        key = (self.length, self.seed + self.epoch, self.shuffle)
        if key not in self.orders:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            self.orders[key] = (
                torch.randperm(self.length, generator=generator).tolist()
                if self.shuffle
                else list(range(self.length))
            )
            while len(self.orders) > 8:
                del self.orders[next(iter(self.orders))]
        return self.orders[key]

    def extended(self, order: list[int], missing: int) -> list[int]:
        """Return an order with so many indices more, from its start."""
        return order + (order * missing)[: max(missing, 0)]


class OneIteratorOnly(DistributedSampler):
    """Right: a second iterator raises while the first one runs, and names the reason."""

    _running = False

    def __iter__(self) -> Iterator[int]:
        if self._running:
            raise RuntimeError("the sampler is being iterated already")
        self._running = True
        try:
            yield from super().__iter__()
        finally:
            self._running = False


class EpochsFromIterations(DistributedSampler):
    """Right: without set_epoch every iteration is an epoch, from 0 on; set_epoch fixes the epoch."""

    _is_set, _iterations = False, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of all later iterations."""
        self._is_set = True
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        if not self._is_set:
            self.epoch, self._iterations = self._iterations, self._iterations + 1
        return super().__iter__()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue a saved iteration next."""
        self._is_set = True
        super().load_state_dict(state)


# Faults.


class SharedPosition(DistributedSampler):
    """All iterators of a sampler share one position (no public incident found).

    SHARD-4: two iterators of one sampler disturb each other.
    """

    def __iter__(self) -> Iterator[int]:
        self.position, self._resume_at = self._resume_at, 0
        mine = self.order()[self.rank :: self.num_replicas]
        while self.position < len(mine):
            self.position += 1
            self.consumed = self.position
            yield mine[self.position - 1]
        self.consumed = 0


class GoesOn(DistributedSampler):
    """An iteration that was left after several items goes on in the next one
    (no public incident found).

    SHARD-4: does not start from the beginning; or SHARD-4: two iterators of one sampler.
    """

    def __iter__(self) -> Iterator[int]:
        if self.consumed > 1 and not self._resume_at:
            self._resume_at = self.consumed
        return super().__iter__()


class GlobalIterations(DistributedSampler):
    """Without set_epoch, the epoch is a count of all samplers' iterations in the process
    (no public incident found).

    SHARD-4: the ranks' indices do not fit together.
    """

    iterations: ClassVar[list[int]] = []
    _is_set = False

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of all later iterations."""
        self._is_set = True
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        if not self._is_set:
            self.epoch = len(self.iterations)
            self.iterations.append(self.rank)
        return super().__iter__()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue a saved iteration next."""
        self._is_set = True
        super().load_state_dict(state)


class SetsOnce(DistributedSampler):
    """set_epoch is ignored until the epoch that was set before has been iterated
    (no public incident found).

    SHARD-4: a call of set_epoch that no iteration followed.
    """

    _waiting = False

    def set_epoch(self, epoch: int) -> None:
        if not self._waiting:
            super().set_epoch(epoch)
        self._waiting = True

    def __iter__(self) -> Iterator[int]:
        self._waiting = False
        return super().__iter__()


class SeedOfTheClock(DistributedSampler):
    """The default of the seed is drawn when the module is imported (no public incident found).

    SHARD-4: another process gets other indices from the same arguments.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = random.Random(time.time_ns()).randrange(2**31),
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)


class OtherDefaults(DistributedSampler):
    """A wrapper around the signature fills in its own drop_last (no public incident found).

    SHARD-4: arguments that are left out are not the defaults of the signature.
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

    def __new__(cls, *args: object, **options: object) -> Self:
        """Remember whether the seed was left out."""
        made = super().__new__(cls)
        made.left_out = len(args) < 5 and "seed" not in options
        return made

    left_out = False

    def order(self) -> list[int]:
        self.seed, seed = self.seed + 42 * self.left_out, self.seed
        try:
            return super().order()
        finally:
            self.seed = seed


class RankOfTheGroup(FromTheGroup):
    """The rank from the process group is that of the next process (no public incident found).

    SHARD-4: rank and world size from the process group give other indices.
    """

    @classmethod
    def own_rank(cls) -> int:
        return (dist.get_rank() + 1) % dist.get_world_size()


class RankZeroCountsAsNone(FromTheGroup):
    """Rank 0 counts as left out, so that the process group's rank takes its place (no public
    incident found).

    SHARD-4: in a process of a larger job.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not rank and dist.is_initialized():
            rank = dist.get_rank() % (num_replicas or dist.get_world_size())
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)


class RankOnItsNode(FromTheEnvironment):
    """The rank that is left out is that of the process on its node (a well-known mistake in launch
    scripts). SHARD-4: rank and world size from the environment.
    """

    number = "LOCAL_RANK"


class PadsWhatItKeeps(KeepsOrders):
    """A kept order is padded in place, so that a larger world gets an order that is padded already
    (no public incident found). SHARD-4: after a sampler of another world size.
    """

    def extended(self, order: list[int], missing: int) -> list[int]:
        missing -= len(order) - self.length
        if missing > 0:
            order += (order * missing)[:missing]
        return order


class CopiedAnew(DistributedSampler):
    """A copy is made by the constructor, and knows no epoch (no public incident found).

    SHARD-4: a copy of the sampler.
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Return how to make the sampler again."""
        arguments = (self.num_replicas, self.rank, self.shuffle, self.seed, self.drop_last)
        return type(self), (range(self.length), *arguments)


class OrderOfItsOriginal(DistributedSampler):
    """A copy keeps the function that gives its original's order, in the original's epoch
    (no public incident found).

    SHARD-4: a copy of the sampler.
    """

    _ordered: Callable[[], list[int]] | None = None

    def order(self) -> list[int]:
        """Return the order by a function that is made once, and belongs to one sampler."""
        if self._ordered is None:
            self._ordered = lambda: DistributedSampler.order(self)
        return self._ordered()


class YieldsUnderItsSeed(DistributedSampler):
    """Indices are yielded while the global generator has the sampler's seed, and it is restored at
    the end (no public incident found). SHARD-4: the random numbers that the program draws.
    """

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed + self.epoch)
            for place, index in enumerate(indices, start=len(self) - len(indices) + 1):
                self.consumed = place
                yield index
        self.consumed = 0


class SwappedByPosition(DistributedSampler):
    """Arguments by position are read in an older order: seed before shuffle
    (no public incident found).

    SHARD-4: arguments by position give other indices.
    """

    def __new__(cls, *args: object, **options: object) -> Self:
        """Remember whether the seed was given by position."""
        del options
        made = super().__new__(cls)
        made.swapped = len(args) > 4
        return made

    swapped = False

    def order(self) -> list[int]:
        if not self.swapped:
            return super().order()
        shuffle, seed = self.shuffle, self.seed
        self.shuffle, self.seed = bool(seed), int(shuffle)
        try:
            return super().order()
        finally:
            self.shuffle, self.seed = shuffle, seed


class LenOfTheRest(DistributedSampler):
    """len is the number of indices that are left in the running iteration
    (no public incident found).

    SHARD-4: len(sampler) changes during an iteration.
    """

    def __len__(self) -> int:
        return super().__len__() - self.consumed

    def order(self) -> list[int]:
        self.consumed = 0
        return super().order()


class YieldsSamples(KeepsDataset):
    """Right: a rank's samples themselves are yielded, and no indices."""

    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            yield self.dataset[index]


class IndicesOfTheWhole(KeepsDataset):
    """The indices of a Subset are those into the dataset behind it (no public incident found).

    SHARD-4: a subset of a dataset gives other indices.
    """

    def order(self) -> list[int]:
        whole = getattr(self.dataset, "indices", range(self.length))
        return [whole[index] for index in super().order()]


class OrderSinceLen(DistributedSampler):
    """len computes the order and keeps it for the next iteration, whatever epoch is set meanwhile
    (no public incident found).

    SHARD-4: len(sampler) changes during an iteration, or changes the indices.
    """

    kept: list[int] | None = None

    def __len__(self) -> int:
        if self.kept is None and self.consumed == 0:
            self.kept = []  # Its own length is asked below.
            self.kept = super().order()
        return super().__len__()

    def order(self) -> list[int]:
        kept, self.kept = self.kept, []
        order = kept or super().order()
        self.kept = None
        return order


class ShufflesAtEachIndex(DistributedSampler):
    """A running iterator looks each index up in the order of the epoch that is set at the time
    (no public incident found).

    SHARD-4: the ranks' indices do not fit together.
    """

    def __iter__(self) -> Iterator[int]:
        skip, self._resume_at = self._resume_at, 0
        for position in range(skip, len(self)):
            self.consumed = position + 1
            yield self.order()[self.rank + position * self.num_replicas]
        self.consumed = 0
