"""Attention of two tokens under one head."""

from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.layers import Layer
from ddp_invariants.ranks.training.layer import Values, builder


class Attention(nn.Module):
    """The values that two tokens attend to under one head, added to the tokens."""

    def __init__(self, query: nn.Parameter, key: nn.Parameter, value: nn.Parameter) -> None:
        super().__init__()
        self.query, self.key, self.value = query, key, value

    def forward(self, x: Tensor) -> Tensor:
        """Shape (B, D) to (B, D)."""
        tokens = x.to(self.query.dtype).reshape(len(x), 2, -1)
        weights = (self.query, self.key, self.value)
        queries, keys, values = (nn.functional.linear(tokens, weight) for weight in weights)
        shares = torch.softmax(queries @ keys.transpose(1, 2) * tokens.shape[2] ** -0.5, 2)
        return (tokens + shares @ values).reshape(len(x), -1)


@builder("attention")
def _build(layer: Layer, width: int, values: Values, _owner: Any) -> nn.Module:
    half = width // 2
    query, key, value = (values.parameter(layer, half, half) for _ in range(3))
    return Attention(query, key, value)
