"""Samplers of accelerate, as `prepare_data_loader` makes them."""

from typing import Any

from accelerate.data_loader import (  # type: ignore[import-not-found] # only judged here
    BatchSamplerShard,
    IterableDatasetShard,
    SeedableRandomSampler,
)
from torch.utils.data import BatchSampler, SequentialSampler


def split_batches(
    dataset: Any, num_processes: int, process_index: int, batch_size: int, *, drop_last: bool
) -> Any:
    """Give each rank a part of every batch, whose size is that of all ranks together."""
    batches = BatchSampler(SequentialSampler(dataset), batch_size * num_processes, drop_last)
    return BatchSamplerShard(batches, num_processes, process_index, split_batches=True)


def split_iterable(
    dataset: Any, num_processes: int, process_index: int, batch_size: int, *, drop_last: bool
) -> Any:
    """Give each rank a part of every batch of an iterable."""
    return IterableDatasetShard(
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
        self.indices = (
            SeedableRandomSampler(dataset, data_seed=seed)
            if shuffle
            else SequentialSampler(dataset)
        )
        batches = BatchSampler(self.indices, batch_size, drop_last)
        self.shard, self.epoch = BatchSamplerShard(batches, num_processes, process_index), 0

    def __iter__(self) -> Any:
        # As a prepared DataLoader does it, because the sampler goes on to the next epoch by itself.
        if isinstance(self.indices, SeedableRandomSampler):
            self.indices.set_epoch(self.epoch)
        return iter(self.shard)

    def __len__(self) -> int:
        return len(self.shard)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch
