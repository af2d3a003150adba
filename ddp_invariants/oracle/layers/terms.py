"""Sums of many products, each with a vector of its own."""

import numpy as np

from ddp_invariants.cases.kinds import SHARES, share
from ddp_invariants.oracle.balls import FORMATS, Ball, FloatArray, quantum_of, times
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind

_LEAST_SHARE = 1 / 16
"""A number of which all shares are multiples."""


@layer_kind("terms")
class Terms(LayerOracle):
    """Sums of x times many vectors."""

    def _added(self, place: Place, factor: Ball, dtype: str) -> Ball:
        """Return the sum over all terms of share times vector times a factor (W, B, D).

        Each product has two roundings, and the sum one for each term.
        """
        vectors_KD = np.stack([place.values(name) for name in place.layer.used])
        shares_K1 = np.array([[share(number)] for number in range(len(vectors_KD))])
        total_D: FloatArray = (vectors_KD * shares_K1).sum(0)
        most_D: FloatArray = (np.abs(vectors_KD) * shares_K1).sum(0)
        return FORMATS[dtype].rounded(
            factor.centre * total_D,
            factor.radius * most_D,
            factor.most * most_D,
            len(vectors_KD) + 2,
            factor.quantum * float(quantum_of(vectors_KD).min()) * _LEAST_SHARE,
        )

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return sums of products."""
        return self._added(place, x, dtype), None

    def backward(
        self, place: Place, g: Ball, x: Ball, _kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input and of the vectors.

        Vectors with equal shares have equal gradients. Autograd multiplies a gradient by a vector
        before it multiplies by the share, so that product may overflow where the sum does not.
        """
        product = times(g, x, "float64")
        of_share = [
            FORMATS[dtype].rounded(
                product.centre.sum(1) * share(number),
                product.radius.sum(1) * share(number),
                product.most.sum(1) * share(number),
                x.centre.shape[1] + 2,
                product.quantum * _LEAST_SHARE,
            )
            for number in range(min(SHARES, place.layer.outputs))
        ]
        gradients = {
            name: of_share[number % SHARES] for number, name in enumerate(place.layer.used)
        }
        back, form = self._added(place, g, dtype), FORMATS[dtype]
        largest_D = np.abs([place.values(name) for name in place.layer.used]).max(0)
        most = g.most * largest_D * (1 + 2 * form.roundoff)
        return Ball(back.centre, form.where_it_fits(back.radius, most), back.quantum), gradients
