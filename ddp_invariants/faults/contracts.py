"""Right samplers with contracts of their own: streams, repetitions, arguments that mean no rank.

Words: N dataset length, W world size.
"""

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import ClassVar

import torch
from torch.utils.data import IterableDataset, Sampler, get_worker_info

_REPEATED = 10


def _order(samples: int, seed: int, *, shuffle: bool) -> list[int]:
    if not shuffle:
        return list(range(samples))
    generator = torch.Generator().manual_seed(seed)
    shuffled: list[int] = torch.randperm(samples, generator=generator).tolist()
    return shuffled


class EndlessStream(Sampler[int]):
    """Right: one stream without end, of which rank r yields every W-th index, and saves its place."""

    declares: ClassVar = {"padding": "endless"}

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        _require(rank, num_replicas)
        self.samples, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed = shuffle, seed
        self.start = self.taken = 0

    def _stream(self) -> Iterator[int]:
        for epoch in itertools.count() if self.samples else ():
            yield from _order(self.samples, self.seed + epoch, shuffle=self.shuffle)

    def __iter__(self) -> Iterator[int]:
        own = itertools.islice(self._stream(), self.rank, None, self.num_replicas)
        start, self.start = self.start, 0
        self.taken = start
        for index in itertools.islice(own, start, None):
            self.taken += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        """Return the number of indices that were taken."""
        return {"taken": self.start or self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after as many indices."""
        self.start = state["taken"]


class EndlessWorkers(IterableDataset[int]):
    """Right: a stream without end, of which each worker of a rank yields every K-th index."""

    declares: ClassVar = {"padding": "endless"}

    def __init__(
        self,
        iterable: Iterable[int],
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.own = EndlessStream([*iterable], num_replicas, rank, shuffle, seed)

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return itertools.islice(iter(self.own), first, None, workers)


def _require(rank: int, num_replicas: int) -> None:
    if num_replicas < 1 or not 0 <= rank < num_replicas:
        raise ValueError(f"rank is {rank}, expected one of {num_replicas}")


class _Dealt(Sampler[int]):
    """A sampler that makes a list of its indices."""

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        _require(rank, num_replicas)
        self.samples, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> list[int]:
        """Return the order of the epoch."""
        return _order(self.samples, self.seed + self.epoch, shuffle=self.shuffle)

    def dealt(self) -> list[int]:
        """Return the rank's indices: every W-th of the order, filled up from its start."""
        order = self.order()
        rest = -len(order) % self.num_replicas
        filled = [*order, *itertools.islice(itertools.cycle(order), rest if order else 0)]
        return filled[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(self.dealt())

    def __len__(self) -> int:
        return len(self.dealt())


class TurnsTheRest(_Dealt):
    """Right: nothing is filled up, and other ranks have one sample more in each shuffled epoch."""

    declares: ClassVar = {"padding": "none"}

    def dealt(self) -> list[int]:
        first = (self.rank + (self.epoch if self.shuffle else 0)) % self.num_replicas
        return self.order()[first :: self.num_replicas]


class Curriculum(_Dealt):
    """Right: a quarter more samples in each of the first epochs, equally many for each rank."""

    declares: ClassVar = {"padding": "own"}

    def dealt(self) -> list[int]:
        kept = self.samples * min(self.epoch + 1, 4) // 4
        order = self.order()[: kept - kept % self.num_replicas]
        return order[self.rank :: self.num_replicas]


class RepeatsTenTimes(_Dealt):
    """Right: an epoch holds each sample ten times."""

    declares: ClassVar = {"padding": "own"}

    def dealt(self) -> list[int]:
        order = self.order() * _REPEATED
        return order[: len(order) - len(order) % self.num_replicas][self.rank :: self.num_replicas]


class DrawnByWeight(_Dealt):
    """Right: each epoch draws with replacement, by weight; without shuffle in ascending order."""

    declares: ClassVar = {"padding": "own"}

    def dealt(self) -> list[int]:
        if not self.samples:
            return []
        weights = torch.tensor([1.0 + index % 3 for index in range(self.samples)])
        total = self.num_replicas * -(-self.samples // self.num_replicas)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        drawn: list[int] = torch.multinomial(weights, total, True, generator=generator).tolist()
        return (drawn if self.shuffle else sorted(drawn))[self.rank :: self.num_replicas]


class SkipsToItsBlock(_Dealt):
    """Right: contiguous blocks; without shuffle a rank goes through the dataset up to its block."""

    def __len__(self) -> int:
        return (self.samples + self.num_replicas - 1) // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        order = self.order() if self.shuffle else range(self.samples)
        filled = itertools.chain.from_iterable(itertools.repeat(order) if self.samples else ())
        return itertools.islice(filled, self.rank * len(self), (self.rank + 1) * len(self))


class MinusOneIsNoRank(_Dealt):
    """Right: -1 is the default of both arguments, and stands for a single process."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int = -1,
        rank: int = -1,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        alone = rank == -1
        super().__init__(dataset, 1 if alone else num_replicas, 0 if alone else rank, shuffle, seed)


class NoneIsNotSharded(_Dealt):
    """Right: without a shard, which is the default, each process yields the whole dataset."""

    def __init__(
        self,
        dataset: Sized,
        num_shards: int | None = None,
        shard_id: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if (num_shards is None) != (shard_id is None):
            raise ValueError("num_shards and shard_id are given together")
        shards = 1 if num_shards is None else num_shards
        super().__init__(dataset, shards, shard_id or 0, shuffle, seed)
