"""torchdata's DataLoader over its distributed sampler."""

import importlib
from typing import Any

import torch

from ddp_invariants.implementation.adapters import preload

preload("torchdata.stateful_dataloader.sampler")


class Loader:
    """A DataLoader whose samples are their indices."""

    def __init__(
        self,
        dataset: Any,
        num_replicas: int,
        rank: int,
        batch_size: int,
        seed: int,
        *,
        shuffle: bool,
        drop_last: bool,
    ) -> None:
        library: Any = importlib.import_module("torchdata.stateful_dataloader")
        self.indices = library.sampler.StatefulDistributedSampler(
            dataset, num_replicas, rank, shuffle, seed, drop_last
        )
        self.loader = library.StatefulDataLoader(
            dataset,
            batch_size=batch_size,
            sampler=self.indices,
            # Without a generator, each iteration draws the workers' seed from torch's global one.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.loader)

    def __iter__(self) -> Any:
        """Iterate over the batches."""
        return iter(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler."""
        self.indices.set_epoch(epoch)

    def state_dict(self) -> Any:
        """Return the state of the DataLoader, which holds that of the sampler."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load a state of the DataLoader."""
        self.loader.load_state_dict(state)
