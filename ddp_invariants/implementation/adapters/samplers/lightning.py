"""Samplers of Lightning over other samplers."""

import importlib
from collections.abc import Iterator
from typing import Any

import torch

from ddp_invariants.implementation.adapters import preload

preload("lightning.fabric.utilities.distributed")


def _wrapped(sampler: Any, **arguments: Any) -> Any:
    library: Any = importlib.import_module("lightning.fabric.utilities.distributed")
    return library.DistributedSamplerWrapper(sampler, shuffle=False, **arguments)


class Shuffled:
    """A user's sampler whose order depends on a seed and the epoch."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self.seed, self.epoch = samples, seed, 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.samples

    def __iter__(self) -> Iterator[int]:
        """Iterate over the samples in the order of the epoch."""
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
    return _wrapped(inner, num_replicas=num_replicas, rank=rank, drop_last=drop_last)


def over_batches(batch_sampler: Any, num_replicas: int, rank: int, batch_size: int) -> Any:
    """Wrap a sampler of batches."""
    del batch_size
    return _wrapped(batch_sampler, num_replicas=num_replicas, rank=rank)
