"""Samplers that are right for a plain dataset in a plain process.

Words: N dataset length, W world size.
"""

from collections.abc import Iterator, Sized
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from ddp_invariants.faults._dataset import KeepsDataset
from ddp_invariants.reference.sampler import DistributedSampler


class OfAGroup(DistributedSampler):
    """Right: rank and world size that are left out are those of a process group."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        process_group: Any = None,
    ) -> None:
        if num_replicas is None:
            num_replicas = dist.get_world_size(process_group)
        if rank is None:
            rank = self.rank_in(process_group, num_replicas)
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)

    @staticmethod
    def rank_in(group: Any, size: int) -> int:
        """Return this process's rank in a group of some size."""
        del size
        return dist.get_rank(group)


class RankOfAllProcesses(OfAGroup):
    """The rank in a group is the rank among all processes, modulo the group's size
    (no public incident found).

    SHARD-4: a process group gives other indices.
    """

    @staticmethod
    def rank_in(group: Any, size: int) -> int:
        del group
        return dist.get_rank() % size


class KeysOfTheDefaultDtype(DistributedSampler):
    """The order is that of random keys, which have the default dtype of the process
    (no public incident found).

    SHARD-4: the order depends on the default dtype.
    """

    def order(self) -> list[int]:
        if not self.shuffle:
            return super().order()
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.rand(self.length, generator=generator).argsort(stable=True).tolist()
        return [order[i % self.length] for i in range(len(self) * self.num_replicas)]


class ByMember(KeepsDataset):
    """Right: the members of a ConcatDataset are shuffled each by itself."""

    def starts(self, members: list[Any]) -> list[int]:
        """Return the index at which each member begins."""
        return [0, *accumulate(map(len, members))][:-1]

    def order(self) -> list[int]:
        members: list[Any] = getattr(self.dataset, "datasets", [])
        if len(members) < 2 or not self.shuffle:
            return super().order()
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = [
            start + index
            for member, start in zip(members, self.starts(members), strict=True)
            for index in torch.randperm(len(member), generator=generator).tolist()
        ]
        return [order[i % self.length] for i in range(len(self) * self.num_replicas)]


class MembersByObject(ByMember):
    """Where a member of a ConcatDataset begins is looked up by the object, which may occur twice
    (no public incident found).

    SHARD-4: a dataset that is concatenated of several.
    """

    def starts(self, members: list[Any]) -> list[int]:
        last = dict(zip(map(id, members), super().starts(members), strict=True))
        return [last[id(member)] for member in members]


class StreamOfIndices(IterableDataset[int]):
    """Right: a stream of indices, which the workers of a DataLoader divide among themselves.

    It does not say so. If the workers of all ranks get equally many indices, they are numbered
    through all ranks, and a rank gets other indices with workers than without.
    """

    def __init__(self, dataset: Sized, num_replicas: int, rank: int) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} of {num_replicas}")
        if len(dataset) == 0:
            raise ValueError("the dataset is empty")
        self.length, self.num_replicas, self.rank = len(dataset), num_replicas, rank

    def total(self) -> int:
        """Return the number of all ranks' indices."""
        return self.num_replicas * -(-self.length // self.num_replicas)

    def __len__(self) -> int:
        return self.total() // self.num_replicas

    def slots(self, workers: int) -> bool:
        """Return whether the workers of all ranks get equally many indices."""
        return self.total() % (self.num_replicas * workers) == 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        first = self.rank + worker * self.num_replicas
        if self.slots(workers):
            first = self.rank * workers + worker
        for place in range(first, self.total(), self.num_replicas * workers):
            yield place % self.length


class SlotsForAll(StreamOfIndices):
    """The workers are numbered through all ranks, so that the first ranks get the remainder
    (no public incident found).

    SHARD-10.
    """

    def slots(self, workers: int) -> bool:
        del workers
        return True
