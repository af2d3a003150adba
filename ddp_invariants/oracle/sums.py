"""Sums of balls in any order, which several kinds of layers need."""

import numpy as np

from ddp_invariants.oracle.balls import FORMATS, Ball, FloatArray


def sum_of(balls: list[Ball], dtype: str) -> Ball:
    """Add numbers up elementwise, in any order."""

    def total(parts: list[FloatArray]) -> FloatArray:
        added: FloatArray = np.sum(np.broadcast_arrays(*parts), axis=0)
        return added

    quantum = min(float(np.min(ball.quantum)) for ball in balls)
    return FORMATS[dtype].rounded(
        total([ball.centre for ball in balls]),
        total([ball.radius for ball in balls]),
        total([ball.most for ball in balls]),
        len(balls),
        quantum,
    )


def as_column(ball: Ball) -> Ball:
    """Append a last axis of length one."""
    return Ball(ball.centre[..., None], ball.radius[..., None], ball.quantum)
