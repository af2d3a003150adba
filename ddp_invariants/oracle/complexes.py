"""Complex layers in balls of real numbers: each complex number is its two parts side by side.

A complex product is four real products and two sums, so each part of a product of matrices is a
sum of products. BLAS' gemm3m makes do with three products; torch does not call it, and it is
outside these bounds.

A gradient is torch's: that of a real loss by the real part, and i times that by the imaginary part,
so that a step against it descends (twice the conjugate Wirtinger derivative).

Suffixes: W ranks, B batch, I and O widths in and out.
"""

import numpy as np

from ddp_invariants.oracle.balls import (
    FORMATS,
    Ball,
    negated,
    plus,
    product,
    summed,
    times,
    transposed,
)

Parts = tuple[Ball, Ball]
"""The real and the imaginary parts of complex numbers."""


def _some(ball: Ball, chosen: slice) -> Ball:
    """Return some numbers along the last axis."""
    return Ball(ball.centre[..., chosen], ball.radius[..., chosen], ball.quantum)


def _reversed(ball: Ball) -> Ball:
    return _some(ball, slice(None, None, -1))


def _apart(ball: Ball) -> Parts:
    """Return the parts of numbers whose parts lie side by side. Shape (…, 2 n) to twice (…, n)."""
    return _some(ball, slice(0, None, 2)), _some(ball, slice(1, None, 2))


def _halves(ball: Ball) -> Parts:
    """Return the parts of numbers whose real parts stand first. Shape (…, 2 n) to twice (…, n)."""
    middle = ball.centre.shape[-1] // 2
    return _some(ball, slice(None, middle)), _some(ball, slice(middle, None))


def _interleaved(parts: Parts) -> Ball:
    """Return the parts side by side, along a new last axis. Twice shape (…) to (…, 2)."""
    real, imaginary = parts
    return Ball(
        np.stack([real.centre, imaginary.centre], -1),
        np.stack([real.radius, imaginary.radius], -1),
        np.minimum(real.quantum, imaginary.quantum),
    )


def _joined(first: Ball, second: Ball, axis: int) -> Ball:
    """Return two balls' numbers end to end along an axis."""
    return Ball(
        np.concatenate([first.centre, second.centre], axis),
        np.concatenate([first.radius, second.radius], axis),
        np.minimum(first.quantum, second.quantum),
    )


def _doubled(ball: Ball, dtype: str) -> Ball:
    """Return twice a ball: exact in every format unless it overflows."""
    return Ball(
        2 * ball.centre,
        FORMATS[dtype].where_it_fits(2 * ball.radius, 2 * ball.most),
        2 * ball.quantum,
    )


def _matrix(weight: Ball) -> Ball:
    """Return the matrix that multiplies real parts above imaginary ones. (O, 2 I) to (2 O, 2 I)."""
    real, imaginary = _apart(weight)
    return _joined(_joined(real, negated(imaginary), 1), _joined(imaginary, real, 1), 0)


def _multiplied(first: Parts, second: Parts, dtype: str, *, conjugate: bool = False) -> Parts:
    """Multiply complex numbers, or numbers and conjugates, elementwise."""
    (a, b), (c, d) = first, second
    d = negated(d) if conjugate else d
    return (
        plus(times(a, c, dtype), negated(times(b, d, dtype)), dtype),
        plus(times(a, d, dtype), times(b, c, dtype), dtype),
    )


# A layer's input is x + i reverse(x), its result Re z + 2 Im z (`Layer.dtype`).


def _entering(x: Ball) -> Parts:
    return x, _reversed(x)


def _leaving(result: Parts, dtype: str) -> Ball:
    return plus(result[0], _doubled(result[1], dtype), dtype)


def _entering_back(g: Parts, dtype: str) -> Ball:
    return plus(g[0], _reversed(g[1]), dtype)


def _leaving_back(g: Ball, dtype: str) -> Parts:
    return g, _doubled(g, dtype)


def linear(x: Ball, weight: Ball, bias: Ball | None, dtype: str) -> Ball:
    """Multiply by a weight, (O, 2 I), and add a bias, (O, 2). Shape (W, B, I) to (W, B, O)."""
    entering = _joined(*_entering(x), 2)
    offset = bias and Ball(bias.centre.T.ravel(), bias.radius.T.ravel(), bias.quantum)
    return _leaving(
        _halves(
            product(entering, transposed(_matrix(weight)), dtype, entering.centre.shape[-1], offset)
        ),
        dtype,
    )


def linear_back(g: Ball, x: Ball, weight: Ball, dtype: str) -> tuple[Ball, Ball, Ball]:
    """Return the gradients of input, (W, B, I), weight, (W, O, 2 I), and bias, (W, O, 2)."""
    real, imaginary = _leaving_back(g, dtype)
    entering, terms = _joined(*_entering(x), 1), 2 * x.centre.shape[1]
    back = product(_joined(real, imaginary, 2), _matrix(weight), dtype, 2 * g.centre.shape[-1])
    of_weight = _interleaved(
        (
            product(transposed(_joined(real, imaginary, 1)), entering, dtype, terms),
            product(transposed(_joined(imaginary, negated(real), 1)), entering, dtype, terms),
        )
    )
    flat = (*of_weight.centre.shape[:-2], -1)
    return (
        _entering_back(_halves(back), dtype),
        Ball(of_weight.centre.reshape(flat), of_weight.radius.reshape(flat), of_weight.quantum),
        _interleaved(_leaving_back(summed(g, (1,), dtype), dtype)),
    )


def scale(x: Ball, factor: Ball, dtype: str) -> Ball:
    """Multiply by a factor's two numbers. Shape (W, B, D) to (W, B, D)."""
    return _leaving(_multiplied(_entering(x), _apart(factor), dtype), dtype)


def scale_back(g: Ball, x: Ball, factor: Ball, dtype: str) -> tuple[Ball, Ball]:
    """Return the gradients of the input, (W, B, D), and of the factor, (W, 2)."""
    leaving = _leaving_back(g, dtype)
    real, imaginary = _multiplied(leaving, _entering(x), dtype, conjugate=True)
    return (
        _entering_back(_multiplied(leaving, _apart(factor), dtype, conjugate=True), dtype),
        _interleaved((summed(real, (1, 2), dtype), summed(imaginary, (1, 2), dtype))),
    )
