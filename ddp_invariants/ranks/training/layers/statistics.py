"""Layers that keep statistics in buffers and pass their input on."""

from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Statistics(nn.Module):
    """Passes x on and keeps a running mean, a count of positive numbers and a mask in buffers.

    The running mean is assigned anew, as modules may do: a list of buffers made before keeps the
    old tensor. A saved state leaves the mask out, as it leaves out tables that a module computes.
    """

    running: Tensor
    count: Tensor
    seen: Tensor

    def __init__(self, running: Tensor, count: Tensor, seen: Tensor) -> None:
        super().__init__()
        self.register_buffer("running", running)
        self.register_buffer("count", count)
        self.register_buffer("seen", seen, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to the same (B, D); updates the buffers in training."""
        if self.training:
            with torch.no_grad():
                mean = x.float().mean(0)
                self.running = 0.5 * self.running + 0.5 * mean
                self.count.add_((x > 0).sum())
                self.seen.logical_or_(mean > 0)
        return x


@builder("statistics")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    running = values.take(width).float()
    count = values.take().mul(4096).long()
    # More bits than a float32 has, through which no broadcast may go; a float64 has them all.
    count = count * 2**39 + count + 1
    seen = values.take(width) > 0
    return Statistics(
        running, count, seen.repeat_interleave(2)[::2] if layer.layout == "strided" else seen
    )
