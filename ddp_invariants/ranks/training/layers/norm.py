"""LayerNorms over all of a sample."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Norm(nn.Module):
    """A LayerNorm over all of a sample."""

    def __init__(self, gain: nn.Parameter, shift: nn.Parameter) -> None:
        super().__init__()
        self.gain, self.shift = gain, shift

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        x = x.to(self.gain.dtype)
        return nn.functional.layer_norm(x, self.gain.shape, self.gain, self.shift)


@builder("norm")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    gain = values.parameter(layer, width)
    return Norm(gain, values.parameter(layer, width))
