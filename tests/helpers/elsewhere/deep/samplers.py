"""Samplers, and the faults of one."""

from collections.abc import Iterator


class TakesTurns:
    """Right: ranks take turns, and begin again where the dataset ends."""

    def __init__(self, dataset: list[int], num_replicas: int, rank: int) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(rank)
        self.size, self.replicas, self.rank = len(dataset), num_replicas, rank

    def __len__(self) -> int:
        return -(-self.size // self.replicas)

    def __iter__(self) -> Iterator[int]:
        return (
            (turn * self.replicas + self.rank) % self.size if self.size else 0
            for turn in range(len(self))
        )


class TakesAll(TakesTurns):
    """Each rank takes everything. SHARD-3: every rank yields the whole dataset. Sampler."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))
