"""Embeddings: x plus a row of a table."""

from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.layers import ROWS, Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Embedding(nn.Embedding):
    """x plus a row of a table, by the sign and the magnitude of the sample's first input.

    The class is an nn.Embedding: torch's DDP asks by type which layers have sparse gradients.
    """

    def __init__(self, weight: nn.Parameter, *, sparse: bool = False) -> None:
        rows, width = weight.shape
        super().__init__(rows, width, sparse=sparse, _weight=weight)
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        # Every format that holds the input agrees on whether its exponent is odd.
        first = x.detach()[:, 0].double()
        rows = 2 * (first < 0) + (torch.frexp(first).exponent & 1)
        return x.to(self.weight.dtype) + super().forward(rows)


@builder("embedding")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    return Embedding(values.parameter(layer, ROWS, width), sparse=layer.sparse)
