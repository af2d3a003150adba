"""Activation functions in ball arithmetic: each with the factor that its backward multiplies by."""

import math

import numpy as np

from ddp_invariants.oracle.balls import FORMATS, OWN_ROUNDOFF, Ball


def relu(ball: Ball) -> tuple[Ball, Ball]:
    """Return max(x, 0), and the factor its backward multiplies by.

    The factor is 0 or 1, or anything between if the sign of x is not known.
    """
    centre, radius = ball.centre, ball.radius
    unknown = (centre - radius <= 0) & (centre + radius > 0)
    result = Ball(np.maximum(centre, 0), np.where(centre + radius <= 0, 0.0, radius), ball.quantum)
    factor = np.where(unknown, 0.5, centre > 0)
    return result, Ball(factor, np.where(unknown, 0.5, 0.0), 0.5 if unknown.any() else 1.0)


_ERF = np.vectorize(math.erf, otypes=[np.float64])


def gelu(ball: Ball, dtype: str) -> tuple[Ball, Ball]:
    """Return x times the normal distribution's integral up to x, and the factor of its backward.

    Both are computed in a dtype. The function's derivative is below 1.13 and that of the factor
    below 0.8 = 2 phi(0). PyTorch evaluates both with an erf and an exp that are accurate to a few
    units in the last place of 1. The 16 roundings cover them. They also cover the argument of the
    exp, whose relative error x**2 u / 2 is multiplied by x phi(x).
    """
    roundoff, smallest = FORMATS[dtype].roundoff + OWN_ROUNDOFF, FORMATS[dtype].smallest
    x, r = ball.centre, ball.radius
    below = 0.5 * (1 + _ERF(x / math.sqrt(2)))
    slope = below + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    radius = np.where(np.isfinite(r), 1.13 * r + 16 * roundoff * ball.most + 4 * smallest, np.inf)
    return (
        Ball(x * below, np.where(ball.most == 0, 0.0, radius), 0.0),
        Ball(slope, np.minimum(0.8 * r + 16 * roundoff + 4 * smallest, 2.0), 0.0),
    )
