"""Layers with one buffer, which pass their input on."""

from ddp_invariants.oracle.layer import layer_kind
from ddp_invariants.oracle.layers.statistics import Statistics


@layer_kind("counter")
class Counter(Statistics):
    """Layers with one buffer, which pass their input on."""
