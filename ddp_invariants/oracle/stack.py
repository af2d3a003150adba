"""A model's layers at one set of parameters, in balls: `ranks.training.model.Replica` again.

Suffixes: W ranks, B batch, I and O widths in and out.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.layers import PASSING
from ddp_invariants.oracle.activations import gelu, relu
from ddp_invariants.oracle.balls import Ball, FloatArray, cast, exactly, plus, summed, times
from ddp_invariants.oracle.layer import Place
from ddp_invariants.oracle.layers import ORACLES


def nothing(parameter: FloatArray, ranks: int) -> Ball:
    """Return a gradient of zero for a parameter on each rank.

    Its shape is the parameter's; a weight's is (W, O, I) however it is stored.
    """
    shape = parameter.shape
    return exactly(
        np.zeros((ranks, shape[0], int(np.prod(shape[1:]))))
        if len(shape) > 1
        else np.zeros((ranks, *shape))
    )


@dataclass(frozen=True)
class _Entered:
    """The values that a layer's backward needs of its forward.

    Attributes:
        place: The layer.
        x: Its input in the dtype it computes in.
        dtype: That dtype.
        source: The dtype of its input before.
        factor: The derivative of its activation; None for a layer without.
        kept: Values its forward kept.
    """

    place: Place
    x: Ball
    dtype: str
    source: str
    factor: Ball | None
    kept: Any


@dataclass
class Stack:
    """A case's layers at one set of parameters.

    Attributes:
        case: The case.
        parameters: Values by full name.
        passed_by: Indices of the layers that the forward passes by.
        drawn: The factors that layers drew, by the layer's index.
        running: The means and variances of BatchNorms in evaluation, by the layer's index.
        gradients: The gradients of trainable parameters, once `backward` has run.
        magnitudes: Of sparse gradients, the magnitudes of the rows kept as a sum, added up.
    """

    case: TrainingCase
    parameters: Mapping[str, FloatArray]
    passed_by: frozenset[int] = frozenset()
    drawn: Mapping[int, FloatArray] = field(default_factory=dict)
    running: Mapping[int, FloatArray] = field(default_factory=dict)
    gradients: dict[str, Ball] = field(default_factory=dict)
    magnitudes: dict[str, FloatArray] = field(default_factory=dict)
    _entered: list[_Entered] = field(default_factory=list)
    _parts: Counter[str] = field(default_factory=Counter)

    def forward(self, inputs_WBI: FloatArray) -> tuple[Ball, str]:
        """Return the outputs (W, B, O) and their dtype."""
        layers = self.case.model.layers
        dtype = "float64" if layers[0].dtype == "float64" else "float32"
        x = cast(exactly(inputs_WBI), "float64", dtype)
        for index, layer in enumerate(layers):
            if index in self.passed_by:
                continue
            place = Place(
                self.case.model,
                index,
                self.parameters,
                self.case.autocast,
                inputs_WBI,
                self.drawn.get(index),
                self.running.get(index),
            )
            for _ in range(1 + layer.twice):
                x, dtype = self._through(place, x, dtype)
        return x, dtype

    def _through(self, place: Place, x: Ball, source: str) -> tuple[Ball, str]:
        """Return one layer's result, and its dtype."""
        layer, dtype = place.layer, source
        if layer.kind not in PASSING:
            dtype = place.computed
            x = cast(x, source, dtype, own=layer.dtype)
        entering, factor = x, None
        x, kept = ORACLES[layer.kind].forward(place, x, dtype)
        if layer.activation != "none":
            x, factor = relu(x) if layer.activation == "relu" else gelu(x, dtype)
        self._entered.append(_Entered(place, entering, dtype, source, factor, kept))
        return x, dtype

    def backward(self, g: Ball) -> None:
        """Collect every trainable parameter's gradient, from that of the outputs in their dtype."""
        for entered in reversed(self._entered):
            place, dtype = entered.place, entered.dtype
            if entered.factor is not None:
                g = times(g, entered.factor, dtype)
            oracle = ORACLES[place.layer.kind]
            for name, magnitude in oracle.magnitudes(place, g).items():
                if not place.frozen(name):
                    self.magnitudes[place.full(name)] = magnitude
            g, gradients = oracle.backward(place, g, entered.x, entered.kept, dtype)
            for name, gradient in gradients.items():
                if (name != "bias" or place.layer.bias) and not place.frozen(name):
                    self._add(place, name, gradient, dtype)
            if place.layer.kind not in PASSING:
                g = cast(g, dtype, entered.source, own=place.layer.dtype)

    def penalise(self, factor_W: Ball) -> Ball:
        """Add to each trained parameter's gradient the parameter, times a factor of each rank.

        Args:
            factor_W: The factors, float64. Shape (W,).

        Returns:
            The sum of the squares of all trained parameters. Shape ().
        """
        flat = [np.zeros(0)]
        for index, layer in enumerate(self.case.model.layers):
            for own_name in layer.parameters:
                name, own = self.case.model.full(index, own_name), layer.dtype_of(own_name)
                values, known = self.parameters[name], self.gradients.get(name)
                if known is None and layer.kind == "loss_only" and not layer.frozen:
                    known = nothing(values, len(factor_W.centre))
                if known is None:
                    continue
                flat.append(values.ravel())
                each = (-1, *(1,) * (known.centre.ndim - 1))
                factor = Ball(
                    factor_W.centre.reshape(each), factor_W.radius.reshape(each), factor_W.quantum
                )
                part = times(exactly(values.reshape(1, *known.centre.shape[1:])), factor, "float64")
                self.gradients[name] = plus(
                    known, cast(part, "float64", own), own, self._parts[name]
                )
        all_values = exactly(np.concatenate(flat))
        return summed(times(all_values, all_values, "float64"), (0,), "float64")

    def _add(self, place: Place, own_name: str, gradient: Ball, dtype: str) -> None:
        """Add a parameter's gradient, which has a part for each use of the parameter.

        Parts are added up in the dtype they were computed in, or cast to the parameter's before.
        """
        name, own = place.full(own_name), place.layer.dtype_of(own_name)
        known, gradient = self.gradients.get(name), cast(gradient, dtype, own)
        self.gradients[name] = (
            gradient
            if known is None
            else cast(plus(known, gradient, dtype, self._parts[name]), dtype, own)
        )
        self._parts[name] += 1

    def count_unused_as_zero(self, ranks: int) -> None:
        """Give the trainable parameters that no layer used a gradient of zero on each rank."""
        model = self.case.model
        for name in model.used(frozenset()) - self.gradients.keys():
            index = model.index_of(name)
            assert index is not None
            if not model.layers[index].frozen:
                self.gradients[name] = nothing(self.parameters[name], ranks)
