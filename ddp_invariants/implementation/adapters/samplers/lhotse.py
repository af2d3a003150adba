"""The sampler of lhotse over cuts of one second, as batches of the cuts' numbers."""

import importlib
from collections.abc import Iterator
from typing import Any

from ddp_invariants.implementation.adapters import preload

preload("lhotse", "lhotse.dataset.sampling")


def _cuts(length: int) -> Any:
    lhotse: Any = importlib.import_module("lhotse")
    return lhotse.CutSet.from_cuts(
        lhotse.MonoCut(f"{number}", 0.0, 1.0, 0) for number in range(length)
    )


class Simple:
    """The sampler over cuts in memory.

    A cut that lhotse repeats has another name after the number, which begins with `_dup`.
    """

    def __init__(
        self,
        length: int,
        world_size: int,
        rank: int,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
    ) -> None:
        sampling: Any = importlib.import_module("lhotse.dataset.sampling")
        self.sampler = sampling.SimpleCutSampler(
            _cuts(length),
            max_cuts=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            world_size=world_size,
            rank=rank,
            seed=seed,
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Iterate over the numbers of the cuts, by batch."""
        for batch in self.sampler:
            yield [int(cut.id.partition("_")[0]) for cut in batch]

    def state_dict(self) -> Any:
        """Return the state of the sampler."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load a state, of which lhotse takes out what it reads."""
        self.sampler.load_state_dict(state)
