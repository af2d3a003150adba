"""Layers that multiply by a sum of two parameters: x * (base + delta)."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Summed(nn.Module):
    """The products of x with a sum of two parameters of one shape.

    Autograd hands one and the same tensor on as the gradient of both.
    """

    def __init__(self, base: nn.Parameter, delta: nn.Parameter) -> None:
        super().__init__()
        self.base, self.delta = base, delta

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        return x.to(self.base.dtype) * (self.base + self.delta)


@builder("summed")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    base = values.parameter(layer, width)
    return Summed(base, values.parameter(layer, width))
