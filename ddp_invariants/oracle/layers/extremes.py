"""Layers with buffers of many dtypes, which pass their input on."""

from ddp_invariants.oracle.layer import layer_kind
from ddp_invariants.oracle.layers.statistics import Statistics


@layer_kind("extremes")
class Extremes(Statistics):
    """Layers with buffers of many dtypes, which pass their input on."""
