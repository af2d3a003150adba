"""Embeddings: x plus a row of a table, chosen by the sign and magnitude of a sample's first input."""

from collections.abc import Mapping

import numpy as np

from ddp_invariants.cases.layers import ROWS
from ddp_invariants.oracle.balls import (
    Ball,
    FloatArray,
    exactly,
    plus,
    product,
    transposed,
)
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


def _chosen(inputs_WBI: FloatArray) -> Ball:
    """Return the row each sample chooses, as a one among zeros. Shape (W, B, ROWS)."""
    first_WB = inputs_WBI[:, :, 0]
    rows_WB = 2 * (first_WB < 0) + (np.frexp(first_WB)[1] & 1)
    return exactly((rows_WB[:, :, None] == np.arange(ROWS)).astype(np.float64))


@layer_kind("embedding")
class Embedding(LayerOracle):
    """Embeddings, with dense or sparse gradients."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return the input plus the chosen rows."""
        weight, chosen = place.used("weight"), _chosen(place.inputs_WBI)
        # One row is multiplied by one and the others by zero: no sum, so no rounding.
        row = Ball(chosen.centre @ weight.centre, np.zeros_like(x.centre), weight.quantum)
        return plus(x, row, dtype), None

    def backward(
        self, place: Place, g: Ball, _x: Ball, _kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input and of the table.

        The gradient of a row is the sum over the samples that chose it, in any order.
        """
        chosen = transposed(_chosen(place.inputs_WBI))
        return g, {"weight": product(chosen, g, dtype, g.centre.shape[1])}

    def magnitudes(self, place: Place, g: Ball) -> Mapping[str, FloatArray]:
        """Return the magnitudes of the rows of a sparse gradient, added up."""
        if not place.layer.sparse:
            return {}
        return {"weight": transposed(_chosen(place.inputs_WBI)).centre @ g.most}
