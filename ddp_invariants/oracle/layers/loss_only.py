"""Layers that hold a parameter for the loss, and pass their input on."""

from ddp_invariants.oracle.layer import layer_kind
from ddp_invariants.oracle.layers.statistics import Statistics


@layer_kind("loss_only")
class LossOnly(Statistics):
    """Layers that pass their input on. `Stack.penalise` computes their parameter's gradient."""
