"""Dropout: each number of the input is multiplied by 0, 1 or 2, which rounds nothing."""

from ddp_invariants.oracle.balls import Ball, masked
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("dropout")
class Dropout(LayerOracle):
    """Dropout by the factors that the ranks drew; a layer in evaluation drew none."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return the input times the factors."""
        return x if place.drawn is None else masked(x, place.drawn, dtype), None

    def backward(
        self, place: Place, g: Ball, _x: Ball, _kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradient of the result times the factors."""
        return g if place.drawn is None else masked(g, place.drawn, dtype), {}
