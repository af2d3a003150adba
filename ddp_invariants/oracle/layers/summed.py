"""Layers that multiply by a sum of two parameters: x * (base + delta)."""

from ddp_invariants.oracle.balls import Ball, plus, summed, times
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("summed")
class Summed(LayerOracle):
    """Layers that multiply by a sum of two parameters."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, Ball]:
        """Return products, and the sum."""
        total = plus(place.used("base"), place.used("delta"), dtype)
        return times(x, total, dtype), total

    def backward(
        self, place: Place, g: Ball, x: Ball, kept: Ball, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradient of the input, and that of both parameters."""
        del place
        of_both = summed(times(g, x, dtype), (1,), dtype)
        return times(g, kept, dtype), {"base": of_both, "delta": of_both}
