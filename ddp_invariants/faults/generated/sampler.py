"""The composed sampler: plain index arithmetic, and a fault in one of its places."""

import random
from collections.abc import Iterator, Sized

import torch

from ddp_invariants.faults.generated.choices import SAMPLER_OPERATORS
from ddp_invariants.faults.generated.triggers import SAMPLER_ACTS, Iteration


class ComposedSampler:
    """A sampler composed of choices (`choices`).

    Args:
        dataset: The dataset; only its length counts.
        num_replicas: The number of ranks.
        rank: The rank's number.
        shuffle: True to shuffle the indices of each epoch.
        seed: The seed of the shuffling.
        drop_last: True to drop the rest that does not fill all ranks; otherwise some indices come
            twice.
        dealing: The indices that a rank gets.
        generator: How indices are shuffled.
        padding: The indices that come twice.
        operator: The fault; empty for none.
        trigger: The iterations in which the fault acts.

    Raises:
        ValueError: There is no such rank.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        dealing: str = "strided",
        generator: str = "torch",
        padding: str = "start",
        operator: str = "",
        trigger: str = "always",
    ) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank is {rank}, expected 0 to {num_replicas - 1}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0
        self._dealing, self._generator, self._padding = dealing, generator, padding
        self._operator, self._trigger = operator, trigger
        self._iterated: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration has."""
        self.epoch = epoch

    def __len__(self) -> int:
        share = len(self._dealt(self._padded([*range(len(self.dataset))])))
        return share + self._acts("length")

    def __iter__(self) -> Iterator[int]:
        mine = self._altered(self._dealt(self._padded(self._order())))
        self._iterated.append(self.epoch)
        return iter(mine)

    def _acts(self, seam: str, operator: str = "") -> bool:
        """Return whether the fault acts now, if it is in this place and has this name."""
        if not self._operator or SAMPLER_OPERATORS[self._operator].seam != seam:
            return False
        if operator not in ("", self._operator):
            return False
        return SAMPLER_ACTS[self._trigger](
            Iteration(
                len(self.dataset),
                self.num_replicas,
                self.rank,
                self.epoch,
                self.seed,
                self.shuffle,
                self.drop_last,
                len(self._iterated),
                self.epoch in self._iterated,
            )
        )

    def _order(self) -> list[int]:
        """Return the indices of the epoch, in the order in which they are dealt."""
        length = len(self.dataset)
        if not self.shuffle or self._acts("order", "unshuffled"):
            return [*range(length)]
        seed = 0 if self._acts("order", "one seed") else self.seed
        epoch = 0 if self._acts("order", "one epoch") else self.epoch
        own = self.rank + 1 if self._acts("order", "own order") else 0
        if self._generator == "torch":
            start = torch.Generator().manual_seed((seed + epoch + 7919 * own) % 2**63)
            return torch.randperm(length, generator=start).tolist()
        indices = [*range(length)]
        random.Random(f"{seed} {epoch} {own}").shuffle(indices)
        return indices

    def _padded(self, indices: list[int]) -> list[int]:
        """Return as many indices as fill all ranks evenly."""
        rest = len(indices) % self.num_replicas
        drops = self.drop_last
        if self._acts("pad"):
            drops = self._operator == "always drop"
        if not rest or not indices:
            return indices
        if drops:
            return indices[: len(indices) - rest]
        missing = self.num_replicas - rest
        again = indices * -(-missing // len(indices))
        return indices + (again[:missing] if self._padding == "start" else again[-missing:])

    def _dealt(self, indices: list[int]) -> list[int]:
        """Return the rank's indices."""
        rank = self.rank
        if self._acts("deal", "same shard"):
            rank = 0
        elif self._acts("deal", "next shard"):
            rank = (rank + 1) % self.num_replicas
        size = self.num_replicas
        if self._dealing == "blocks":
            share = len(indices) // size
            return indices[rank * share : (rank + 1) * share]
        place = {
            "strided": rank,
            "mirrored": size - 1 - rank,
            "rotated": (rank - 1) % size,
            "snake": rank,
        }[self._dealing]
        rounds = [indices[start : start + size] for start in range(0, len(indices), size)]
        if self._dealing == "snake":
            rounds = [turn[::-1] if number % 2 else turn for number, turn in enumerate(rounds)]
        return [turn[place] for turn in rounds]

    def _altered(self, mine: list[int]) -> list[int]:
        """Return the rank's indices, altered by a fault."""
        if not mine or not self._acts("deal"):
            return mine
        return {
            "skip": [*mine[:-1], mine[0]],
            "double": [mine[0], mine[0], *mine[2:]][: len(mine)],
            "beyond": [*mine[:-1], len(self.dataset)],
            "short": mine[:-1],
        }.get(self._operator, mine)
