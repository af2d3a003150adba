"""Layers that multiply by a factor which torch computes from a parameter: x * (2 * v)."""

from ddp_invariants.oracle.balls import FORMATS, Ball, scaled, summed, times
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind

_ORIGINAL = "inner.parametrizations.factor.original"


@layer_kind("parametrized")
class Parametrized(LayerOracle):
    """Layers with a factor that is twice their parameter."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, Ball]:
        """Return products, and the factor."""
        factor = scaled(place.used(_ORIGINAL), 2.0, FORMATS[dtype])
        return times(x, factor, dtype), factor

    def backward(
        self, _place: Place, g: Ball, x: Ball, kept: Ball, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradient of the input, and that of the parameter."""
        of_factor = summed(times(g, x, dtype), (1,), dtype)
        return times(g, kept, dtype), {_ORIGINAL: scaled(of_factor, 2.0, FORMATS[dtype])}
