"""Layers that multiply by a factor which torch computes from a parameter: x * (2 * v)."""

import numpy as np

from ddp_invariants.oracle.balls import Ball, exactly, summed, times
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind

_TWO = exactly(np.array([2.0]))
_ORIGINAL = "parametrizations.factor.original"


@layer_kind("parametrized")
class Parametrized(LayerOracle):
    """Layers with a factor that is twice their parameter. To double a number rounds nothing."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, Ball]:
        """Return products, and the factor."""
        factor = times(place.used(_ORIGINAL), _TWO, dtype)
        return times(x, factor, dtype), factor

    def backward(
        self, _place: Place, g: Ball, x: Ball, kept: Ball, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradient of the input, and that of the parameter."""
        of_factor = summed(times(g, x, dtype), (1,), dtype)
        return times(g, kept, dtype), {_ORIGINAL: times(of_factor, _TWO, dtype)}
