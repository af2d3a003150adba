"""The interface of a layer's kind: its forward and backward in balls.

Each kind is a class in a module of `layers/`. The decorator `@layer_kind` registers the class
beside its definition, and no other file lists it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ddp_invariants.cases.layers import Layer, LayerKind, Model
from ddp_invariants.oracle.balls import Ball, FloatArray, cast, exactly

Gradients = dict[str, Ball]
"""The gradients of a layer's parameters, by the names they have in the layer."""


@dataclass(frozen=True)
class Place:
    """One layer in its model, with the values of one step.

    Attributes:
        model: The model.
        index: The layer's index.
        parameters: All values at the start of the step, by full name.
        autocast: True if the forward runs under autocast.
        inputs_WBI: Every rank's inputs to the model.
        drawn: The factors by which the layer's random numbers multiplied its input, (W, B, D); None
            for a layer that draws none.
        running: The means and variances in every rank's buffers, by which a BatchNorm in evaluation
            norms, (2, W, C); None for a layer in training.
    """

    model: Model
    index: int
    parameters: Mapping[str, FloatArray]
    autocast: bool
    inputs_WBI: FloatArray
    drawn: FloatArray | None
    running: FloatArray | None = None

    @property
    def layer(self) -> Layer:
        """The layer."""
        return self.model.layers[self.index]

    @property
    def computed(self) -> str:
        """The dtype the layer computes in."""
        return self.layer.lowered if self.autocast else self.layer.dtype

    def _owner(self, name: str) -> int:
        tied = self.layer.tied
        return tied if tied is not None and name == "weight" else self.index

    def full(self, name: str) -> str:
        """Return a parameter's full name, which is that of its owner where it is tied."""
        return self.model.full(self._owner(name), name)

    def frozen(self, name: str) -> bool:
        """Return whether a parameter is frozen."""
        return self.model.layers[self._owner(name)].frozen

    def values(self, name: str) -> FloatArray:
        """Return a parameter's values."""
        return self.parameters[self.full(name)]

    def used(self, name: str, *shape: int) -> Ball:
        """Return a parameter's values in the dtype the layer computes in, in a shape if given."""
        values = self.values(name)
        values = values.reshape(shape) if shape else values
        return cast(exactly(values), self.layer.dtype_of(name), self.computed)

    @property
    def bias(self) -> Ball | None:
        """The bias as the layer uses it; None for a layer without."""
        return self.used("bias") if self.layer.bias else None


class LayerOracle:
    """The forward and backward of a kind of layer, for all ranks at once."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, Any]:
        """Return the result before its activation, and the values backward needs again.

        Args:
            place: The layer.
            x: Its input in its dtype. Shape (W, B, D in).
            dtype: The dtype it computes in.
        """
        raise NotImplementedError

    def backward(
        self, place: Place, g: Ball, x: Ball, kept: Any, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradient of the input, and those of the parameters: weights as (W, O, I).

        Args:
            place: The layer.
            g: The gradient of the result before its activation. Shape (W, B, D out).
            x: The input of the forward.
            kept: The values the forward kept.
            dtype: The dtype it computes in.
        """
        raise NotImplementedError

    def magnitudes(self, place: Place, g: Ball) -> Mapping[str, FloatArray]:
        """Return, of sparse gradients, the magnitudes of the rows kept as a sum, added up."""
        del place, g
        return {}


Kind = TypeVar("Kind", bound=type[LayerOracle])

ORACLES: dict[LayerKind, LayerOracle] = {}


def layer_kind(name: LayerKind) -> Callable[[Kind], Kind]:
    """Register the forward and backward of a kind."""

    def register(kind: Kind) -> Kind:
        ORACLES[name] = kind()
        return kind

    return register
