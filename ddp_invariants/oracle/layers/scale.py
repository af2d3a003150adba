"""Scales: x times a 0-d parameter."""

from ddp_invariants.oracle import complexes
from ddp_invariants.oracle.balls import Ball, summed, times
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("scale")
class Scale(LayerOracle):
    """Scales, real and complex ones."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return products."""
        factor = place.used("factor")
        scaled = complexes.scale if place.layer.complex else times
        return scaled(x, factor, dtype), None

    def backward(
        self, place: Place, g: Ball, x: Ball, _kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input and of the factor."""
        factor = place.used("factor")
        if place.layer.complex:
            back, of_factor = complexes.scale_back(g, x, factor, dtype)
            return back, {"factor": of_factor}
        return times(g, factor, dtype), {"factor": summed(times(g, x, dtype), (1, 2), dtype)}
