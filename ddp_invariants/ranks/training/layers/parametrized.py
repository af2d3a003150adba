"""Layers that multiply by a factor which torch computes from a parameter: x * (2 * v)."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder, watch


class Parametrized(nn.Module):
    """x times a factor that is no parameter.

    A child holds the factor, because torch makes a class of its own for each module with a
    parametrization. It keeps the parameter as `original` in a module that has a child, too.
    """

    class Doubled(nn.Module):
        """The function that computes the factor, as a weight norm or an adapter would."""

        def forward(self, x: Tensor) -> Tensor:
            """Any shape, to twice the values."""
            return 2 * x

    def __init__(self, original: nn.Parameter) -> None:
        super().__init__()
        self.inner: Any = nn.Module()
        self.inner.factor = original
        nn.utils.parametrize.register_parametrization(self.inner, "factor", self.Doubled())

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        factor: Tensor = self.inner.factor
        return x.to(factor.dtype) * factor


@builder("parametrized")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    module = Parametrized(values.parameter(layer, width))
    watch(module.inner.parametrizations.factor[0])
    return module
