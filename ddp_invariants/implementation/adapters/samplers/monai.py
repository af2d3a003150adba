"""Samplers of MONAI that need more than a dataset."""

import importlib
from typing import Any, ClassVar

import torch

from ddp_invariants.implementation.adapters import preload

preload("monai.data")


class Weighted:
    """Indices drawn by weight, from a generator that is seeded anew for each iteration.

    A dataset that grows would need further weights.
    """

    declares: ClassVar[dict[str, object]] = {"unsupported": ["changed_length"]}

    def __init__(
        self, dataset: Any, num_replicas: int, rank: int, seed: int, *, drop_last: bool
    ) -> None:
        self.generator, self.seed = torch.Generator(), seed
        library: Any = importlib.import_module("monai.data")
        self.sampler = library.DistributedWeightedRandomSampler(
            dataset,
            [1 + index % 3 for index in range(len(dataset))],
            generator=self.generator,
            num_replicas=num_replicas,
            rank=rank,
            seed=seed,
            drop_last=drop_last,
        )

    def __len__(self) -> int:
        """Return the number of indices of this rank."""
        return len(self.sampler)

    def __iter__(self) -> Any:
        """Draw the indices of this rank."""
        self.generator.manual_seed(self.seed + self.sampler.epoch)
        return iter(list(self.sampler))  # Drawn at once, before another iterator seeds it.

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.sampler.set_epoch(epoch)
