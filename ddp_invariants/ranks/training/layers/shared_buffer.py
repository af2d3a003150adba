"""Layers of which two modules hold the same buffer, and which pass their input on."""

from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class SharedBuffer(nn.Module):
    """Passes x on and counts its positive numbers in a buffer, which a child module holds, too."""

    count: Tensor

    def __init__(self, count: Tensor) -> None:
        super().__init__()
        self.register_buffer("count", count)
        self.beside = nn.Module()
        self.beside.register_buffer("count", count)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to the same (B, D); updates the child's buffer in training."""
        if self.training:
            with torch.no_grad():
                self.beside.get_buffer("count").add_((x > 0).sum())
        return x


@builder("shared_buffer")
def _build(_layer: Layer, _width: int, values: Values, _owner: Any) -> nn.Module:
    return SharedBuffer(values.take().mul(4096).long())
