"""Dropout by the default generator."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Dropout(nn.Module):
    """Makes each number of its input zero or twice itself, which rounds nothing.

    torch.rand takes one number of the generator for each element. How many random bits torch's own
    dropout spends on a mask depends on its build.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D), of the same dtype."""
        return x * self.factors(x).to(x.dtype)

    def factors(self, x: Tensor) -> Tensor:
        """Draw the factors of an input: 0 and 2 in training, 1 in evaluation."""
        if self.training:
            return self.draw(x.shape, x.device)
        return torch.ones_like(x).float()

    @staticmethod
    def draw(
        shape: torch.Size, device: torch.device, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw factors, from the default generator unless another one is given."""
        return (torch.rand(shape, device=device, generator=generator) < 0.5).float() * 2


class NotedDropout(Dropout):
    """Dropout whose factors are noted, or given.

    Attributes:
        given: The factors of the next forwards in training; None to draw them.
        at_draw: Called in every forward that draws, with the factors: float32, in the shape of the
            input.
    """

    given: Tensor | None = None
    at_draw: Callable[[Tensor], None] | None = None

    def factors(self, x: Tensor) -> Tensor:
        """Return the factors that are given, or draw and note them."""
        if self.given is not None and self.training:
            return self.given.to(x.device)
        factors = super().factors(x)
        if self.at_draw is not None:
            self.at_draw(factors)
        return factors


@builder("dropout")
def _build(_layer: Layer, _width: int, _values: Values, _owner: Any) -> nn.Module:
    return NotedDropout()
