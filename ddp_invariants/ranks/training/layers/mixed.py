"""Layers with parameters of two dtypes: x * gain + shift."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Mixed(nn.Module):
    """The products of x with a gain, and a shift of another dtype."""

    def __init__(self, gain: nn.Parameter, shift: nn.Parameter) -> None:
        super().__init__()
        self.gain, self.shift = gain, shift

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D), in the gain's dtype."""
        return x.to(self.gain.dtype) * self.gain + self.shift.to(self.gain.dtype)


@builder("mixed")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    gain = values.parameter(layer, width)
    return Mixed(gain, nn.Parameter(values.of("float64", width), not layer.frozen))
