"""Layers with buffers of many dtypes, which pass their input on."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddp_invariants.cases.extremes import EXTREMES
from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Extremes(nn.Module):
    """Passes x on and keeps large counts, codes, signs and very small and large floats in buffers."""

    total: Tensor
    level: Tensor
    code: Tensor
    mask: Tensor
    steps: Tensor
    edges: Tensor
    far: Tensor

    def __init__(self, *buffers: Tensor) -> None:
        super().__init__()
        names = ("total", "level", "code", "mask", "steps", "edges", "far")
        for name, buffer in zip(names, buffers, strict=True):
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to the same (B, D); changes the buffers in training, and rounds nothing."""
        if self.training:
            with torch.no_grad():
                positive = (x > 0).sum(0)
                self.total.add_(positive)
                self.level.bitwise_xor_((positive % 2).to(self.level.dtype))
                self.code.bitwise_xor_((positive % 2).to(self.code.dtype))
                self.mask.logical_or_(positive > 0)
                self.steps.add_(positive.sum())
                sign = 1 - 2 * (positive.sum() % 2)
                self.edges.mul_(sign)
                self.far.mul_(sign)
        return x


@builder("extremes")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    return Extremes(
        *(
            torch.from_numpy(np.asarray(EXTREMES[name](values.drawn(*shape)))).to(values.device)
            for name, shape in layer.of_kind.buffers(width).items()
        )
    )
