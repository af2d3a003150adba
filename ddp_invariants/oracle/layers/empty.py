"""Layers that add the sum of a parameter without elements, which is zero."""

import numpy as np

from ddp_invariants.oracle.balls import Ball
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("empty")
class Empty(LayerOracle):
    """Layers that add the sum of a parameter without elements."""

    def forward(self, _place: Place, x: Ball, _dtype: str) -> tuple[Ball, None]:
        """Return the input."""
        return x, None

    def backward(
        self, place: Place, g: Ball, _x: Ball, _kept: object, _dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradient of the result, and one without elements."""
        nothing = np.zeros((len(g.centre), *place.values("nothing").shape))
        return g, {"nothing": Ball(nothing, nothing, 1.0)}
