"""Samplers of Lightning over other samplers."""

from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.utilities.distributed import (  # type: ignore[import-not-found] # only judged here
    DistributedSamplerWrapper,
)


class Shuffled:
    """A user's sampler whose order depends on a seed and the epoch."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self.seed, self.epoch = samples, seed, 0

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.samples, generator=generator).tolist())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.epoch = epoch


def over_shuffled(
    sampler: Any, num_replicas: int, rank: int, seed: int, *, shuffle: bool, drop_last: bool
) -> Any:
    """Wrap a sampler that shuffles, or a torch sampler that does not, as a `Trainer` does it."""
    inner = Shuffled(len(sampler), seed) if shuffle else sampler
    return DistributedSamplerWrapper(
        inner, num_replicas=num_replicas, rank=rank, shuffle=False, drop_last=drop_last
    )


def over_batches(batch_sampler: Any, num_replicas: int, rank: int, batch_size: int) -> Any:
    """Wrap a sampler of batches."""
    del batch_size
    return DistributedSamplerWrapper(
        batch_sampler, num_replicas=num_replicas, rank=rank, shuffle=False
    )
