"""Branches: the difference of two products."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Branches(nn.Module):
    """The difference of two products; autograd gets first to the one computed last.

    Attributes:
        crossed: True if the second product is computed first.
    """

    def __init__(self, first: nn.Parameter, second: nn.Parameter, *, crossed: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.crossed = first, second, crossed

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        x = x.to(self.first.dtype)
        if self.crossed:
            second = nn.functional.linear(x, self.second)
            return nn.functional.linear(x, self.first) - second
        return nn.functional.linear(x, self.first) - nn.functional.linear(x, self.second)


@builder("branches")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    first = values.parameter(layer, width, width)
    return Branches(first, values.parameter(layer, width, width))
