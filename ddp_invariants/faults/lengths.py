"""Distributed samplers whose dataset changes its length between two epochs.

Words: N dataset length, W world size, L indices per rank.
"""

from collections.abc import Iterator, Sized

from ddp_invariants.faults._dataset import KeepsDataset
from ddp_invariants.reference.sampler import DistributedSampler


class ReadsLengthAnew(KeepsDataset):
    """Right: the dataset's length is read when an iteration begins, and len follows then."""

    def order(self) -> list[int]:
        self.length = len(self.dataset)
        return super().order()


class RefusesChangedLength(ReadsLengthAnew):
    """Right: a dataset that changed its length raises when an iteration begins."""

    def order(self) -> list[int]:
        if len(self.dataset) != self.length:
            raise RuntimeError(f"the dataset had {self.length} samples, now {len(self.dataset)}")
        return super().order()


# Faults.


class OrderOfTheOldLength(ReadsLengthAnew):
    """The order is kept for an epoch and drawn for the length at construction, while len is that
    of the present dataset (no public incident found).

    SHARD-4: after the dataset's length changed.
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
        self.first_length = self.length

    def order(self) -> list[int]:
        self.length = self.first_length
        order = DistributedSampler.order(self)[: self.first_length]
        self.length = len(self.dataset)
        total = len(self) * self.num_replicas
        return [order[i % len(order)] for i in range(total)]


class LenOfThePresent(ReadsLengthAnew):
    """len reads the dataset's length anew, and the order keeps to that at construction
    (no public incident found).

    SHARD-4: after the dataset's length changed.
    """

    def __len__(self) -> int:
        n, w = len(self.dataset), self.num_replicas
        return n // w if self.drop_last else -(-n // w)

    def __iter__(self) -> Iterator[int]:
        skip, self._resume_at = self._resume_at, 0
        total = super().__len__() * self.num_replicas
        order = self.order()
        for position in range(skip * self.num_replicas + self.rank, total, self.num_replicas):
            self.consumed = position // self.num_replicas + 1
            yield order[position]
        self.consumed = 0

    def order(self) -> list[int]:
        n, w = self.length, self.num_replicas
        total = (n // w if self.drop_last else -(-n // w)) * w
        one = DistributedSampler(range(n), 1, 0, self.shuffle, self.seed, self.drop_last)
        one.set_epoch(self.epoch)
        order = one.order()
        return [order[i % n] for i in range(total)]


class FirstRankAlone(ReadsLengthAnew):
    """Only rank 0 reads the dataset's length anew, and does not send it to the others
    (no public incident found).

    SHARD-4: after the dataset's length changed.
    """

    def order(self) -> list[int]:
        return super().order() if self.rank == 0 else DistributedSampler.order(self)
