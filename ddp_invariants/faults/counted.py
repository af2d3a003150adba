"""Samplers without `set_epoch`: each iteration is the next epoch.

Public code has many of them: a sampler keeps a generator, and each iteration draws from it.
"""

from collections.abc import Iterator, Sized
from math import ceil
from typing import Any, ClassVar

import torch


class CountsItsIterations:
    """Right: it has no set_epoch; each iteration is the next epoch, by a count that is saved."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} of {num_replicas}")
        self.samples, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch, self.place, self._begin = -1, 0, 0

    def __len__(self) -> int:
        samples, ranks = self.samples, self.num_replicas
        return samples // ranks if self.drop_last else ceil(samples / ranks)

    def generator(self) -> torch.Generator:
        """Return the generator of the epoch's order."""
        return torch.Generator().manual_seed(hash((self.seed, self.epoch)) % 2**63)

    def order(self) -> list[int]:
        """Return the epoch's order, which starts over to fill the ranks."""
        if not self.shuffle:
            order = list(range(self.samples))
        else:
            order = torch.randperm(self.samples, generator=self.generator()).tolist()
        total = len(self) * self.num_replicas
        return (order * ceil(total / max(self.samples, 1)))[:total]

    def shard(self) -> list[int]:
        """Return the rank's part of the order."""
        return self.order()[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        begin, self._begin = self._begin, 0
        self.epoch += not begin
        shard = self.shard()
        for self.place in range(begin + 1, len(shard) + 1):
            yield shard[self.place - 1]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        """Return the number of the epoch, and how much of it was taken."""
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a saved iteration next."""
        self.epoch, self.place = state["epoch"], state["place"]
        self._begin = self.place


class DrawsFromItsGenerator(CountsItsIterations):
    """Right: it has no set_epoch; each iteration draws its order from a generator that is kept."""

    declares: ClassVar[dict[str, Any]] = {"unsupported": ["resume"]}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._kept = torch.Generator().manual_seed(self.seed % 2**63)

    def generator(self) -> torch.Generator:
        """Return the generator that the sampler keeps."""
        return self._kept


# Faults.


class ShufflesOnce(CountsItsIterations):
    """Each iteration has the order of the first one (no public incident found).

    SHARD-5: the epoch is ignored.
    """

    def generator(self) -> torch.Generator:
        """Return a generator that does not depend on the epoch."""
        return torch.Generator().manual_seed(hash(self.seed) % 2**63)


class SharesOneGenerator(DrawsFromItsGenerator):
    """All samplers of a process draw from the same generator, so a second sampler changes the first
    one's order (no public incident found).

    SHARD-4.
    """

    _shared = torch.Generator()

    def generator(self) -> torch.Generator:
        """Return the generator of all samplers."""
        return self._shared


class CountsOnEvenRanks(CountsItsIterations):
    """Ranks with an odd number count from the second iteration on (no public incident found).

    SHARD-2: the ranks shuffle differently.
    """

    def generator(self) -> torch.Generator:
        """Return the generator of the epoch before on odd ranks."""
        late = self.rank % 2 and self.epoch > 0
        return torch.Generator().manual_seed(hash((self.seed, self.epoch - late)) % 2**63)


class LoadsNoCount(CountsItsIterations):
    """A loaded state sets the place, but not the epoch (no public incident found).

    SHARD-9.
    """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the saved place of the first epoch."""
        super().load_state_dict({**state, "epoch": 0})
