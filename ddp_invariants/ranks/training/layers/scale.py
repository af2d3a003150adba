"""Scales: x times a 0-d parameter."""

from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Scale(nn.Module):
    """x times a 0-d parameter."""

    def __init__(self, factor: nn.Parameter) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        return x.to(self.factor.dtype) * self.factor


class ComplexScale(Scale):
    """The same of z = x + i reverse(x), as Re z + 2 Im z."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        if not self.factor.is_complex():  # A wrapper may cast it.
            return super().forward(x)
        x = x.to(self.factor.dtype.to_real())
        z = torch.complex(x, x.flip(1)) * self.factor
        return z.real + 2 * z.imag


class RootedScale(nn.Module):
    """x times a 0-d parameter that the whole model holds."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = (model,)  # In a tuple it is no child of this module.

    @property
    def factor(self) -> Tensor:
        """The model's parameter."""
        factor: Tensor = self._model[0].factor
        return factor

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        return x.to(self.factor.dtype) * self.factor


@builder("scale")
def _build(layer: Layer, _width: int, values: Values, owner: Any) -> nn.Module:
    if owner is not None:
        owner.factor = values.parameter(layer)
        return RootedScale(owner)
    kind = ComplexScale if layer.complex else Scale
    return kind(values.parameter(layer))
