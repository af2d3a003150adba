"""Sums of many products, each with a vector of its own."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Terms(nn.Module):
    """The sum of x times many vectors, each with an exact share of its own.

    The list is called `module`, as many wrappers call what they wrap: nobody may strip this part
    of a name.
    """

    def __init__(self, *factors: nn.Parameter) -> None:
        super().__init__()
        self.module = nn.ParameterList(factors)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        x = x.to(self.module[0].dtype)
        total = x * 0
        for number, factor in enumerate(self.module):
            total = total + x * ((number % 13 + 1) / 16) * factor
        return total


@builder("terms")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    return Terms(*(values.parameter(layer, width) for _ in range(layer.outputs)))
