"""Convolutions: images of 2 x 2, padded above and to the left, under a kernel of 2 x 2.

Every bound holds for each way torch may compute a convolution on CPU: any order of summation, any
fused multiply-add. Transforms (Winograd's, Fourier's) are outside these bounds, and not used:
oneDNN has the first for kernels of 3 x 3 alone, NNPACK either from a batch of 16 on.

Suffixes: W ranks, B batch, O and C channels out and in.
"""

import numpy as np

from ddp_invariants.oracle.balls import FORMATS, Ball, FloatArray, product, summed, transposed
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind

_PLACES = ((0, 0), (0, 1), (1, 0), (1, 1))
_TAPS = np.array(
    [
        [
            3 - 2 * (to[0] - at[0]) - (to[1] - at[1]) if to[0] >= at[0] and to[1] >= at[1] else 4
            for at in _PLACES
        ]
        for to in _PLACES
    ]
)
"""The kernel's element that leads from a place of the image (column) to one of the result (row).

4 stands for none.
"""
_LEADS = np.stack([tap == _TAPS for tap in range(4)]).astype(np.float64)


def _as_matrix(kernel: Ball) -> Ball:
    """Return the matrix whose product is the convolution. Shape (O, C, 2, 2) to (4 O, 4 C)."""
    outputs, inputs = kernel.centre.shape[:2]

    def spread(values: FloatArray) -> FloatArray:
        taps = np.concatenate(
            [values.reshape(outputs, inputs, 4), np.zeros((outputs, inputs, 1))], 2
        )
        matrix: FloatArray = (
            taps[:, :, _TAPS].transpose(0, 2, 1, 3).reshape(4 * outputs, 4 * inputs)
        )
        return matrix

    return Ball(spread(kernel.centre), spread(kernel.radius), kernel.quantum)


def convolved(x: Ball, kernel: Ball, bias: Ball | None, dtype: str) -> Ball:
    """Return sums of 4 C products at most. Shape (W, B, 4 C) to (W, B, 4 O)."""
    offset = (
        None
        if bias is None
        else Ball(np.repeat(bias.centre, 4), np.repeat(bias.radius, 4), bias.quantum)
    )
    return product(x, transposed(_as_matrix(kernel)), dtype, x.centre.shape[-1], offset)


def convolved_back(g: Ball, x: Ball, kernel: Ball, dtype: str) -> tuple[Ball, Gradients]:
    """Return the gradients of the input, (W, B, 4 C), and of kernel and bias, (W, O, 4 C) and (W, O).

    The kernel's gradients are sums over the batch and at most four places of the result.
    """
    (ranks, batch, _), (outputs, inputs) = g.centre.shape, kernel.centre.shape[:2]

    def by_tap(sums: FloatArray) -> FloatArray:
        places = sums.reshape(ranks, outputs, 4, inputs, 4)
        taps: FloatArray = np.einsum("wopcq,tpq->woct", places, _LEADS).reshape(
            ranks, outputs, 4 * inputs
        )
        return taps

    turned = transposed(g)
    moved = np.abs(turned.centre) @ x.radius + turned.radius @ x.most
    of_kernel = FORMATS[dtype].rounded(
        by_tap(turned.centre @ x.centre),
        by_tap(moved),
        by_tap(turned.most @ x.most),
        4 * batch,
        g.quantum * x.quantum,
    )
    apart = Ball(
        g.centre.reshape(ranks, batch, outputs, 4),
        g.radius.reshape(ranks, batch, outputs, 4),
        g.quantum,
    )
    return (
        product(g, _as_matrix(kernel), dtype, 4 * outputs),
        {"kernel": of_kernel, "bias": summed(apart, (1, 3), dtype)},
    )


@layer_kind("convolution")
class Convolution(LayerOracle):
    """Convolutions of images of 2 x 2."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, None]:
        """Return sums of products."""
        return convolved(x, place.used("kernel"), place.bias, dtype), None

    def backward(
        self, place: Place, g: Ball, x: Ball, _kept: object, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input, of the kernel and of the bias."""
        return convolved_back(g, x, place.used("kernel"), dtype)
