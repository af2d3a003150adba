"""Attention: two tokens under one head, and the input added to the result.

Suffixes: W ranks, B batch, D width, N tokens, E width of a token.
"""

from dataclasses import dataclass

import numpy as np

from ddp_invariants.oracle.balls import (
    FORMATS,
    OWN_ROUNDOFF,
    Ball,
    FloatArray,
    exactly,
    gamma,
    negated,
    plus,
    product,
    summed,
    times,
    transposed,
)
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind
from ddp_invariants.oracle.sums import as_column, sum_of


@dataclass(frozen=True)
class Attended:
    """The values an attention's backward needs of its forward.

    Tokens, queries, keys and values have shape (W, B, N, E), shares (W, B, N, N).
    """

    tokens: Ball
    queries: Ball
    keys: Ball
    values: Ball
    shares: Ball


def _tokens(ball: Ball) -> Ball:
    """Return the tokens of each sample. Shape (W, B, D) to (W, B, 2, E)."""
    shape = (*ball.centre.shape[:2], 2, -1)
    return Ball(ball.centre.reshape(shape), ball.radius.reshape(shape), ball.quantum)


def _flat(ball: Ball) -> Ball:
    """Return the tokens of all samples. Shape (W, B, 2, E) to (W, 2 B, E)."""
    shape = (len(ball.centre), -1, ball.centre.shape[-1])
    return Ball(ball.centre.reshape(shape), ball.radius.reshape(shape), ball.quantum)


def _by_the_root(ball: Ball, width: int, dtype: str) -> Ball:
    """Return a ball times 1 / sqrt(E), a constant that is rounded to the dtype."""
    root, exact = np.array(width**-0.5), np.frexp(width**-0.5)[0] == 0.5
    rounding = 0.0 if exact else FORMATS[dtype].roundoff + OWN_ROUNDOFF
    return times(ball, Ball(root, root * rounding, float(root) if exact else 0.0), dtype)


def _logistic(x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        fraction: FloatArray = 1 / (1 + np.exp(-x))
    return fraction


def _shares(scores: Ball, dtype: str) -> Ball:
    """Return the softmax of two scores: the logistic function of their difference.

    Of the roundings 48 stand for an exp good to 20 units in the last place (torch's least exact
    one) above and below the fraction, and for a sum and a division; that of the difference is
    counted by itself.
    """
    form = FORMATS[dtype]
    roundoff = form.roundoff + OWN_ROUNDOFF
    above = scores.centre - scores.centre[..., ::-1]
    radius = scores.radius + scores.radius[..., ::-1]
    radius = radius + roundoff * (np.abs(above) + radius)
    centre = _logistic(above)
    known = np.isfinite(radius)
    reach = np.where(known, radius, 0.0)
    spread = np.maximum(_logistic(above + reach) - centre, centre - _logistic(above - reach))
    radius_of_shares = spread + gamma(48, roundoff) * (centre + spread) + 4 * form.smallest
    return Ball(
        centre, np.where(known, radius_of_shares, np.inf), 0.0
    )  # A score that overflows may be NaN.


def attended(x: Ball, weights: dict[str, FloatArray], dtype: str) -> tuple[Ball, Attended]:
    """Return the result of the attention. Shape (W, B, D) to (W, B, D)."""
    tokens = _tokens(x)
    width = tokens.centre.shape[-1]
    queries, keys, values = (
        product(tokens, transposed(exactly(weights[name])), dtype, width)
        for name in ("query", "key", "value")
    )
    scores = _by_the_root(product(queries, transposed(keys), dtype, width), width, dtype)
    shares = _shares(scores, dtype)
    result = plus(tokens, product(shares, values, dtype, 2), dtype)
    shape = x.centre.shape
    return Ball(
        result.centre.reshape(shape), result.radius.reshape(shape), result.quantum
    ), Attended(tokens, queries, keys, values, shares)


def attended_back(
    g: Ball, kept: Attended, weights: dict[str, FloatArray], dtype: str
) -> tuple[Ball, Gradients]:
    """Return the gradients of the input, (W, B, D), and of the three weights, (W, E, E)."""
    shape, g, width = g.centre.shape, _tokens(g), kept.tokens.centre.shape[-1]
    of_shares = product(g, transposed(kept.values), dtype, width)
    weighed = times(kept.shares, of_shares, dtype)
    total = as_column(summed(weighed, (3,), dtype))
    of_softmax = times(kept.shares, plus(of_shares, negated(total), dtype), dtype)
    # torch may subtract the total before the product, or after two products.
    of_softmax = FORMATS[dtype].rounded(
        of_softmax.centre,
        of_softmax.radius,
        kept.shares.most * (of_shares.most + total.most),
        2,
        0.0,
    )
    of_scores = _by_the_root(of_softmax, width, dtype)
    parts = {
        "query": product(of_scores, kept.keys, dtype, 2),
        "key": product(transposed(of_scores), kept.queries, dtype, 2),
        "value": product(transposed(kept.shares), g, dtype, 2),
    }
    tokens = _flat(kept.tokens)
    gradients = {
        name: product(transposed(_flat(part)), tokens, dtype, tokens.centre.shape[1])
        for name, part in parts.items()
    }
    back = sum_of(
        [g, *(product(part, exactly(weights[name]), dtype, width) for name, part in parts.items())],
        dtype,
    )
    return Ball(back.centre.reshape(shape), back.radius.reshape(shape), back.quantum), gradients


def _weights(place: Place) -> dict[str, FloatArray]:
    return {name: place.values(name) for name in place.layer.parameters}


@layer_kind("attention")
class Attention(LayerOracle):
    """Attention of two tokens under one head."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, Attended]:
        """Return the input plus the values attended to."""
        return attended(x, _weights(place), dtype)

    def backward(
        self, place: Place, g: Ball, _x: Ball, kept: Attended, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input and of the three weights."""
        return attended_back(g, kept, _weights(place), dtype)
