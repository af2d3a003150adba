"""Layers that hold a parameter for the loss, which no forward uses."""

from ddp_invariants.oracle.balls import Ball
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("loss_only")
class LossOnly(LayerOracle):
    """Layers that pass their input on. `Stack.penalise` computes the parameter's gradient."""

    def forward(self, _place: Place, x: Ball, _dtype: str) -> tuple[Ball, None]:
        """Return the input."""
        return x, None

    def backward(
        self, _place: Place, g: Ball, _x: Ball, _kept: object, _dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradient of the result, and none of the parameter."""
        return g, {}
