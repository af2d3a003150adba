"""Layers of which two modules hold the same buffer, and which pass their input on."""

from ddp_invariants.oracle.layer import layer_kind
from ddp_invariants.oracle.layers.statistics import Statistics


@layer_kind("shared_buffer")
class SharedBuffer(Statistics):
    """Layers of which two modules hold the same buffer, and which pass their input on."""
