"""Layers that add the sum of a parameter without elements."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Empty(nn.Module):
    """x plus the sum of a parameter without elements, which is zero."""

    def __init__(self, nothing: nn.Parameter) -> None:
        super().__init__()
        self.nothing = nothing

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        return x.to(self.nothing.dtype) + self.nothing.sum()


@builder("empty")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    return Empty(values.parameter(layer, 0, width))
