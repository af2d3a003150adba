"""Layers with parameters of two dtypes: x * gain + shift."""

from ddp_invariants.oracle.balls import Ball, plus, summed, times
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("mixed")
class Mixed(LayerOracle):
    """Layers with parameters of two dtypes."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return products, to which the shift is added in the gain's dtype."""
        return plus(times(x, place.used("gain"), dtype), place.used("shift"), dtype), None

    def backward(
        self, place: Place, g: Ball, x: Ball, _kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input, of the gain and of the shift."""
        return times(g, place.used("gain"), dtype), {
            "gain": summed(times(g, x, dtype), (1,), dtype),
            "shift": summed(g, (1,), dtype),
        }
