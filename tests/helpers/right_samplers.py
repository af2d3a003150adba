"""Right samplers that some rule has accused; each says what is special about it."""

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from ddp_invariants.reference.sampler import DistributedSampler as Reference


class OwnBatchSize(Sampler[list[int]]):
    """Its batches have a size of its own, by a name that nobody knows."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        samples_per_gpu: int = 2,
    ) -> None:
        self.indices = Reference(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.size = samples_per_gpu

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.indices.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        every = list(self.indices)
        return iter([every[at : at + self.size] for at in range(0, len(every), self.size)])

    def __len__(self) -> int:
        return (len(self.indices) + self.size - 1) // self.size


class OneMoreOnTheFirstRank(OwnBatchSize):
    """No right one: the first rank yields one more batch."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from super().__iter__()
        if self.indices.rank == 0:
            yield [0]


class Chunks(Reference):
    """It shuffles chunks of 64 samples, and reads each chunk in order."""

    def order(self) -> list[int]:
        """Return the order of the epoch, repeated or cut to whole rounds."""
        starts = list(range(0, self.length, 64))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1009 + self.epoch)
            places = torch.randperm(len(starts), generator=generator).tolist()
            starts = [starts[place] for place in places]
        order = [at for start in starts for at in range(start, min(start + 64, self.length))]
        total = len(self) * self.num_replicas
        return [order[place % self.length] for place in range(total)]


class IgnoresTheSeed(Reference):
    """No right one."""

    def order(self) -> list[int]:
        """Return the order of the epoch under seed 0."""
        self.seed = 0
        return super().order()


class IgnoresTheEpoch(Reference):
    """No right one."""

    def set_epoch(self, epoch: int) -> None:
        """Do nothing."""


class KeepsTheFirstOrder(Reference):
    """No right one: the order of the first iteration stays for all epochs."""

    def order(self) -> list[int]:
        """Return the order of the first iteration."""
        if not hasattr(self, "first"):
            self.first = super().order()
        return self.first


class HoldsTheEpoch(Reference):
    """No right one: after a resumption, `set_epoch` does nothing until an iteration has ended."""

    resumed = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, unless the sampler was resumed."""
        if not self.resumed:
            super().set_epoch(epoch)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Load a state."""
        super().load_state_dict(state)
        self.resumed = True

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.resumed = False
