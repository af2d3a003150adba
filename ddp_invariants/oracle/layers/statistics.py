"""Layers that keep statistics in buffers and pass their input on."""

from ddp_invariants.oracle.balls import Ball
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("statistics")
class Statistics(LayerOracle):
    """Layers that keep statistics in buffers and pass their input on."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return the input."""
        del place, dtype
        return x, None

    def backward(
        self, place: Place, g: Ball, x: Ball, kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradient of the result."""
        del place, x, kept, dtype
        return g, {}
