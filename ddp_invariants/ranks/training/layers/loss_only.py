"""Layers that hold a parameter for the loss, which no forward uses."""

from typing import Any

from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class LossOnly(nn.Module):
    """x. The loss uses the parameter, as it may use a learned temperature."""

    def __init__(self, coefficient: nn.Parameter) -> None:
        super().__init__()
        self.coefficient = coefficient

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        return x


@builder("loss_only")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    return LossOnly(values.parameter(layer, width))
