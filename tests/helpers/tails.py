"""Implementations that lose what stands alone at the end: an element of a chunk, a sample of a batch."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

CHUNK = 5
"""Elements that travel together."""


class LosesALoneElement(nn.Module):
    """Gradients travel in chunks; a last chunk of one element is left out."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Average the gradients."""
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        for chunk in flat.split(CHUNK):
            if chunk.numel() > 1 or flat.numel() == 1:
                dist.all_reduce(chunk)
                chunk.div_(dist.get_world_size())
        self._write(gradients, flat)

    def _write(self, gradients: list[Tensor], flat: Tensor) -> None:
        for gradient, part in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))


class LosesALoneSample:
    """A batch sampler that leaves out a last batch of one sample."""

    def __init__(
        self, dataset: Any, batch_size: int, num_replicas: int, rank: int, *, shuffle: bool = False
    ) -> None:
        del shuffle
        if not 0 <= rank < num_replicas or not dataset:
            raise ValueError("no such rank, or no samples")
        self.length, self.size, self.ranks, self.rank = (
            len(dataset),
            batch_size,
            num_replicas,
            rank,
        )

    def _batches(self) -> list[list[int]]:
        whole = -(-self.length // self.ranks) * self.ranks
        own = [index % self.length for index in range(self.rank, whole, self.ranks)]
        batches = [own[at : at + self.size] for at in range(0, len(own), self.size)]
        return [batch for batch in batches if len(batch) > 1 or self.size <= 2]

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches())
