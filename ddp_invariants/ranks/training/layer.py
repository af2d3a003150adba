"""The building of a case's layers as torch modules.

Each kind of layer is a class in a module of `layers/`, plain torch, which exported scripts contain
as it is. The decorator `@builder` registers beside the class how a rank builds it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ddp_invariants.cases.dtypes import Dtype
from ddp_invariants.cases.layers import Layer, LayerKind

CPU = torch.device("cpu")


class Values:
    """Initial numbers of a model, dealt out to tensors in order, on a device."""

    def __init__(self, values_P: NDArray[np.float64], device: torch.device = CPU) -> None:
        self.values_P, self.taken, self.device = values_P, 0, device

    def drawn(self, *shape: int) -> NDArray[np.float64]:
        """Return the next numbers as an array of that shape."""
        count = int(np.prod(shape, dtype=int))
        piece = self.values_P[self.taken : self.taken + count]
        self.taken += count
        return piece.reshape(shape)

    def take(self, *shape: int) -> Tensor:
        """Return the next numbers as a float64 tensor of that shape, on the device."""
        return torch.from_numpy(self.drawn(*shape).copy()).to(self.device)

    def of(self, dtype: Dtype, *shape: int) -> Tensor:
        """Return the next numbers in a dtype and shape; a complex element takes two."""
        kind: torch.dtype = getattr(torch, dtype)
        return (
            torch.view_as_complex(self.take(*shape, 2)) if kind.is_complex else self.take(*shape)
        ).to(kind)

    def parameter(self, layer: Layer, *shape: int) -> nn.Parameter:
        """Return the next numbers as a parameter of a layer."""
        return nn.Parameter(self.of(layer.dtype, *shape), not layer.frozen)

    def bias(self, layer: Layer, width: int) -> nn.Parameter | None:
        """Return the next numbers as a bias; None for a layer without."""
        return self.parameter(layer, width) if layer.bias else None


Builder = Callable[[Layer, int, Values, Any], nn.Module]
"""Builds a layer: its plan, its input width, the numbers, and the module with its parameter or None.

Such a module is the layer that it is tied to, or the whole model.
"""

_BUILDERS: dict[LayerKind, Builder] = {}


def builder(kind: LayerKind) -> Callable[[Builder], Builder]:
    """Register how a rank builds a kind of layer."""

    def register(build: Builder) -> Builder:
        _BUILDERS[kind] = build
        return build

    return register


def built(layer: Layer, width: int, values: Values, owner: Any) -> nn.Module:
    """Return a layer that can be watched."""
    module = _BUILDERS[layer.kind](layer, width, values, owner)
    watch(module)
    return module


def watch(module: nn.Module) -> None:
    """Let the forwards of a module be watched.

    A layer is watched, and so is a part of it that alone computes with its parameters.
    """
    module.__class__ = _watched(type(module))


class Watched(nn.Module):
    """A module whose forwards can be watched.

    Attributes:
        at_forward: Called as its forward begins, when an implementation that shards parameters must
            have gathered them. A hook of torch's might run before it gathers them.
    """

    at_forward: Callable[[], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Run the module's own forward; of a layer, shape (B, in) to (B, out)."""
        if self.at_forward is not None:
            self.at_forward()
        result: Tensor = super().forward(x)
        return result


_WATCHED: dict[type[nn.Module], type[nn.Module]] = {}


def _watched(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a class of the same name that can be watched; layers pickle by its name here."""
    if kind not in _WATCHED:
        _WATCHED[kind] = type(kind.__name__, (Watched, kind), {"__module__": __name__})
        globals()[kind.__name__] = _WATCHED[kind]
    return _WATCHED[kind]
