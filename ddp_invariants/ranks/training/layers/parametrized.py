"""Layers that multiply by a factor which torch computes from a parameter: x * (2 * v)."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Parametrized(nn.Module):
    """x times a factor that is no parameter.

    The parameter is `original` in a list that torch adds to the layer, and that has a child module.
    """

    class Doubled(nn.Module):
        """The function that computes the factor, as a weight norm or an adapter would."""

        def forward(self, x: Tensor) -> Tensor:
            """Any shape, to twice the values."""
            return 2 * x

    factor: Tensor

    def __init__(self, original: nn.Parameter) -> None:
        super().__init__()
        self.factor = original
        nn.utils.parametrize.register_parametrization(self, "factor", self.Doubled())

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        factor = self.factor
        return x.to(factor.dtype) * factor


@builder("parametrized")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    return Parametrized(values.parameter(layer, width))
