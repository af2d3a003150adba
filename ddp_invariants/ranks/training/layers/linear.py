"""Linear layers: x @ W.T + b."""

from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Linear(nn.Module):
    """x @ W.T + b."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, in) to (B, out)."""
        weight = (
            self.weight if self.weight.dim() == 2 else self.weight.reshape(len(self.weight), -1)
        )
        return nn.functional.linear(x.to(weight.dtype), weight, self.bias)


class ComplexLinear(Linear):
    """The same of z = x + i reverse(x), as Re z + 2 Im z."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, in) to (B, out)."""
        if not self.weight.is_complex():  # A wrapper may cast it.
            return super().forward(x)
        weight = (
            self.weight if self.weight.dim() == 2 else self.weight.reshape(len(self.weight), -1)
        )
        x = x.to(weight.dtype.to_real())
        z = nn.functional.linear(torch.complex(x, x.flip(1)), weight, self.bias)
        return z.real + 2 * z.imag


@builder("linear")
def _build(layer: Layer, width: int, values: Values, owner: Any) -> nn.Module:
    drawn = values.of(layer.dtype, layer.outputs, width)
    own = nn.Parameter(_laid_out(drawn, layer), not layer.frozen)
    kind = ComplexLinear if layer.complex else Linear
    return kind(own if owner is None else owner.weight, values.bias(layer, layer.outputs))


def _laid_out(values: Tensor, layer: Layer) -> Tensor:
    """Return a weight (out, in) in the layer's memory layout."""
    rows, columns = values.shape
    if layer.layout == "transposed":
        return values.t().contiguous().t()
    if layer.layout == "strided":
        pairs = torch.stack([values, torch.zeros_like(values)], dim=2)
        return pairs.reshape(rows, 2 * columns)[:, ::2]
    if layer.layout == "channels_last":
        images = values.reshape(rows, columns // 4, 2, 2)
        return images.contiguous(memory_format=torch.channels_last)
    return values
