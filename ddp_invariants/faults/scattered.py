"""Data that rank 0 sends: each rank gets its part and reads it without a sampler.

These implementations know only the default process group. Words: N samples in all, W world size.
"""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor


class Scatters:
    """Right: equal parts by one scatter; every rank refuses a dataset that W does not divide."""

    declares: ClassVar[dict[str, Any]] = {"layout": "scatter"}

    def __init__(self, dataset: Tensor) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.held = self.part(dataset)

    def part(self, dataset: Tensor) -> Tensor:
        """Return this rank's part. Shape (N // W,)."""
        if len(dataset) % self.world_size:
            raise ValueError(
                f"{len(dataset)} samples are no equal parts for {self.world_size} ranks"
            )
        return self.scattered(
            list(dataset.chunk(self.world_size)) if len(dataset) else [dataset] * self.world_size
        )

    def scattered(self, parts: list[Tensor]) -> Tensor:
        """Return the part that rank 0 sends to this rank; all parts have the same shape."""
        held = torch.empty_like(parts[0])
        dist.scatter(held, [part.contiguous() for part in parts] if self.rank == 0 else None, src=0)
        return held

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, place: int) -> Tensor:
        return self.held[place]


class ScattersPadded(Scatters):
    """Right: the data repeat until W divides their number, and each rank gets every W-th sample."""

    def part(self, dataset: Tensor) -> Tensor:
        share = -(-len(dataset) // self.world_size)
        whole = dataset[torch.arange(share * self.world_size) % max(len(dataset), 1)]
        return self.scattered([whole[rank :: self.world_size] for rank in range(self.world_size)])


class ScattersObjects(Scatters):
    """Right: lists of any length by a scatter of objects; nothing is padded, so some ranks have one
    sample more.
    """

    declares: ClassVar[dict[str, Any]] = {"layout": "scatter", "padding": "none"}

    def part(self, dataset: Tensor) -> Tensor:
        parts = [dataset[rank :: self.world_size].tolist() for rank in range(self.world_size)]
        held: list[list[int]] = [[]]
        dist.scatter_object_list(held, parts if self.rank == 0 else None, src=0)
        return torch.tensor(held[0], dtype=dataset.dtype)


class CutsItsOwn(ScattersPadded):
    """Every rank cuts its part out of data that it has read itself
    (similar: ray-project/ray#64315).

    SHARD-8: its own data.
    """

    def scattered(self, parts: list[Tensor]) -> Tensor:
        return parts[self.rank]


class SendsIndices(ScattersPadded):
    """Rank 0 sends positions, and the other ranks take them for the data
    (no public incident found).

    SHARD-8.
    """

    def part(self, dataset: Tensor) -> Tensor:
        return super().part(torch.arange(len(dataset)))


class SendsHalfPrecision(ScattersPadded):
    """Samples travel as float16, which rounds large values (no public incident found). SHARD-8."""

    def scattered(self, parts: list[Tensor]) -> Tensor:
        return super().scattered([part.to(torch.float16) for part in parts]).to(torch.int64)


class LosesTheRest(Scatters):
    """Each rank gets N // W samples, and no rank gets the rest (chunks as in many lectures).

    SHARD-2: are dropped although drop_last is off.
    """

    def part(self, dataset: Tensor) -> Tensor:
        share = len(dataset) // self.world_size
        return self.scattered(
            [dataset[rank * share : (rank + 1) * share] for rank in range(self.world_size)]
        )


class BroadcastsAll(ScattersPadded):
    """All data go to every rank, and no rank takes only its part (no public incident found).

    SHARD-3: every rank yields the whole dataset.
    """

    def part(self, dataset: Tensor) -> Tensor:
        whole = dataset.clone()
        dist.broadcast(whole, src=0)
        return whole


class RefusesOnTheFirst(Scatters):
    """Only rank 0 checks that the parts are equal; if they are not, the other ranks wait for ever
    (a well-known mistake).

    LIVE-1.
    """

    def part(self, dataset: Tensor) -> Tensor:
        return (
            super().part(dataset)
            if self.rank == 0
            else self.scattered([dataset[: len(dataset) // self.world_size]])
        )


class ShufflesOnEveryRank(ScattersPadded):
    """Rank 0 shuffles the data before it sends them, with a generator that nothing has seeded
    (no public incident found).

    SHARD-4.
    """

    def part(self, dataset: Tensor) -> Tensor:
        return super().part(dataset[torch.randperm(len(dataset))])
