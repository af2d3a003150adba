"""Convolutions: a kernel of 2 x 2 over images of 2 x 2."""

from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Convolution(nn.Module):
    """A kernel of 2 x 2 over images of 2 x 2 that are padded above and to the left."""

    def __init__(
        self, kernel: nn.Parameter, bias: nn.Parameter | None, memory_format: torch.memory_format
    ) -> None:
        super().__init__()
        self.kernel, self.bias, self.format = kernel, bias, memory_format

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, 4 C) to (B, 4 O)."""
        images = x.to(self.kernel.dtype).reshape(len(x), -1, 2, 2)
        padded = nn.functional.pad(images.contiguous(memory_format=self.format), (1, 0, 1, 0))
        return nn.functional.conv2d(padded, self.kernel, self.bias).reshape(len(x), -1)


@builder("convolution")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    last = layer.layout == "channels_last"
    memory_format = torch.channels_last if last else torch.contiguous_format
    kernel = values.of(layer.dtype, layer.outputs, width // 4, 2, 2)
    parameter = nn.Parameter(kernel.contiguous(memory_format=memory_format), not layer.frozen)
    return Convolution(parameter, values.bias(layer, layer.outputs), memory_format)
