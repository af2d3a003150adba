"""Samplers of torch that are made of several parts."""

from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler, graph_settings
from torch.utils.data.datapipes.iter import IterableWrapper


class InBatches(BatchSampler):
    """Batches of a `DistributedSampler`, as a program gives them to a DataLoader."""

    def __init__(  # the arguments of both
        self,
        dataset: Any,
        num_replicas: int,
        rank: int,
        batch_size: int,
        seed: int = 0,
        *,
        shuffle: bool,
        drop_last: bool,
    ) -> None:
        self.indices: DistributedSampler[Any] = DistributedSampler(
            dataset, num_replicas, rank, shuffle, seed, drop_last=drop_last
        )
        super().__init__(self.indices, batch_size, drop_last=False)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler of indices."""
        self.indices.set_epoch(epoch)


class ShardedPipe:
    """A pipe that shuffles and then shards, driven as a DataLoader drives it."""

    def __init__(
        self, dataset: Any, num_shards: int, rank: int, seed: int, *, shuffle: bool
    ) -> None:
        pipe = IterableWrapper(range(len(dataset)))
        self.pipe = (pipe.shuffle() if shuffle else pipe).sharding_filter()
        self.seed, self.epoch = seed, 0
        graph_settings.apply_sharding(self.pipe, num_shards, rank)

    def __len__(self) -> int:
        """Return the number of samples of this rank."""
        return len(self.pipe)

    def __iter__(self) -> Any:
        """Iterate over the samples of this rank."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        graph_settings.apply_random_seed(self.pipe, generator)
        return iter(self.pipe)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which the ranks' common seed depends on."""
        self.epoch = epoch
