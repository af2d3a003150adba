"""Linear layers: x @ W.T + b."""

from ddp_invariants.oracle import complexes
from ddp_invariants.oracle.balls import Ball, product, summed, transposed
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind


@layer_kind("linear")
class Linear(LayerOracle):
    """Linear layers, real and complex ones."""

    def _weight(self, place: Place) -> Ball:
        """Return the weight (O, I), or (O, 2 I) of a complex one, however it is stored."""
        return place.used("weight", place.layer.outputs, -1)

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return sums of products."""
        bias, weight = place.bias, self._weight(place)
        if place.layer.complex:
            return complexes.linear(x, weight, bias, dtype), None
        return product(x, transposed(weight), dtype, x.centre.shape[-1], bias), None

    def backward(
        self, place: Place, g: Ball, x: Ball, _kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input, of the weight and of the bias.

        Autocast casts a weight once for all its uses, whose gradients are added up in the lower
        dtype.
        """
        weight = self._weight(place)
        if place.layer.complex:
            back, of_weight, of_bias = complexes.linear_back(g, x, weight, dtype)
        else:
            back = product(g, weight, dtype, place.layer.outputs)
            of_weight = product(transposed(g), x, dtype, x.centre.shape[1])
            of_bias = summed(g, (1,), dtype)
        gradients = {"weight": of_weight}
        return back, gradients | ({"bias": of_bias} if place.layer.bias else {})
