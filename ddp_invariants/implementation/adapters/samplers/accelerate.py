"""Samplers of accelerate, as `prepare_data_loader` makes them."""

import importlib
from typing import Any

from torch.utils.data import BatchSampler, SequentialSampler

from ddp_invariants.implementation.adapters import preload

preload("accelerate.data_loader")


def _library() -> Any:
    return importlib.import_module("accelerate.data_loader")


def split_batches(
    dataset: Any, num_processes: int, process_index: int, batch_size: int, *, drop_last: bool
) -> Any:
    """Give each rank a part of every batch, whose size is that of all ranks together."""
    batches = BatchSampler(SequentialSampler(dataset), batch_size * num_processes, drop_last)
    return _library().BatchSamplerShard(batches, num_processes, process_index, split_batches=True)


def split_iterable(
    dataset: Any, num_processes: int, process_index: int, batch_size: int, *, drop_last: bool
) -> Any:
    """Give each rank a part of every batch of an iterable."""
    return _library().IterableDatasetShard(
        range(len(dataset)),
        batch_size * num_processes,
        drop_last,
        num_processes,
        process_index,
        split_batches=True,
    )


class Seedable:
    """Batches of a shuffled order that depends on a seed and the epoch (`use_seedable_sampler`)."""

    def __init__(
        self,
        dataset: Any,
        num_processes: int,
        process_index: int,
        batch_size: int,
        seed: int,
        *,
        shuffle: bool,
        drop_last: bool,
    ) -> None:
        self.seedable = shuffle
        self.indices: Any = (
            _library().SeedableRandomSampler(dataset, data_seed=seed)
            if shuffle
            else SequentialSampler(dataset)
        )
        batches = BatchSampler(self.indices, batch_size, drop_last)
        self.shard: Any = _library().BatchSamplerShard(batches, num_processes, process_index)
        self.epoch = 0

    def __iter__(self) -> Any:
        """Iterate over the batches of this rank."""
        # As a prepared DataLoader does it, because the sampler goes on to the next epoch by itself.
        if self.seedable:
            self.indices.set_epoch(self.epoch)
        return iter(self.shard)

    def __len__(self) -> int:
        """Return the number of batches of this rank."""
        return len(self.shard)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch
