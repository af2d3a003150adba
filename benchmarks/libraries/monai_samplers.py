"""Samplers of MONAI that need more than a dataset."""

from typing import Any

import torch
from monai.data import (  # type: ignore[import-not-found] # only judged here
    DistributedWeightedRandomSampler,
)


class Weighted:
    """Indices drawn by weight, from a generator that is seeded anew for each iteration."""

    def __init__(
        self, dataset: Any, num_replicas: int, rank: int, seed: int, *, drop_last: bool
    ) -> None:
        self.generator, self.seed = torch.Generator(), seed
        self.sampler = DistributedWeightedRandomSampler(
            dataset,
            [1 + index % 3 for index in range(len(dataset))],
            generator=self.generator,
            num_replicas=num_replicas,
            rank=rank,
            seed=seed,
            drop_last=drop_last,
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Any:
        self.generator.manual_seed(self.seed + self.sampler.epoch)
        return iter(list(self.sampler))  # Drawn at once, before another iterator seeds it.

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.sampler.set_epoch(epoch)
