"""Branches: the difference of two products, x @ F.T - x @ S.T."""

from ddp_invariants.oracle.balls import Ball, negated, plus, product, transposed
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("branches")
class Branches(LayerOracle):
    """Branches, whichever of the two a rank computes first."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return the difference of two products."""
        first, second = (
            product(x, transposed(place.used(name)), dtype, x.centre.shape[-1])
            for name in place.layer.parameters
        )
        return plus(first, negated(second), dtype), None

    def backward(
        self, place: Place, g: Ball, x: Ball, _kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input and of both weights."""
        backs: list[Ball] = []
        gradients: Gradients = {}
        for name, part in zip(place.layer.parameters, (g, negated(g)), strict=True):
            gradients[name] = product(transposed(part), x, dtype, x.centre.shape[1])
            backs.append(product(part, place.used(name), dtype, part.centre.shape[-1]))
        return plus(backs[0], backs[1], dtype), gradients
