"""BatchNorms: each channel of 2 x 2 pixels by its mean and variance over a rank's batch.

A BatchNorm in evaluation norms by the mean and the variance in its buffers.

Suffixes: W ranks, B batch, C channels.
"""

import numpy as np

from ddp_invariants.oracle.balls import (
    FORMATS,
    OWN_ROUNDOFF,
    Ball,
    FloatArray,
    exactly,
    gamma,
    summed,
    times,
)
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind
from ddp_invariants.oracle.layers.norm import Normed, applied, normed, normed_back


def _by_channel(ball: Ball) -> Ball:
    """Bring each channel's numbers together. Shape (W, B, 4 C) to (W, C, 4 B)."""

    def turned(values: FloatArray) -> FloatArray:
        ranks, batch, width = values.shape
        return (
            values.reshape(ranks, batch, width // 4, 4)
            .transpose(0, 2, 1, 3)
            .reshape(ranks, width // 4, 4 * batch)
        )

    return Ball(turned(ball.centre), turned(ball.radius), ball.quantum)


def _by_sample(ball: Ball) -> Ball:
    """Bring each sample's numbers together. Shape (W, C, 4 B) to (W, B, 4 C)."""

    def turned(values: FloatArray) -> FloatArray:
        ranks, channels, pixels = values.shape
        return (
            values.reshape(ranks, channels, pixels // 4, 4)
            .transpose(0, 2, 1, 3)
            .reshape(ranks, pixels // 4, 4 * channels)
        )

    return Ball(turned(ball.centre), turned(ball.radius), ball.quantum)


def batch_normed(
    x: Ball, weight: FloatArray, bias: FloatArray | None, dtype: str
) -> tuple[Ball, Normed]:
    """Norm each channel over a rank's batch. Shape (W, B, 4 C) to (W, B, 4 C)."""
    shift = np.zeros_like(weight) if bias is None else bias
    found, kept = normed(_by_channel(x), weight[:, None], shift[:, None], dtype)
    return _by_sample(found), kept


def batch_normed_back(
    g: Ball, x: Ball, kept: Normed, weight: FloatArray, dtype: str
) -> tuple[Ball, Gradients]:
    """Return the gradients of the input, (W, B, 4 C), and of weight and bias, (W, C).

    torch first subtracts mean(g) and the rest from g, and multiplies all by weight and scale last:
    the same products, each with no more roundings than `normed_back` counts.
    """
    back, gradients = normed_back(_by_channel(g), _by_channel(x), kept, weight[:, None], dtype)
    return _by_sample(back), {"weight": gradients["gain"], "bias": gradients["shift"]}


def batch_evaluated(
    x: Ball, running_2WC: FloatArray, weight: FloatArray, bias: FloatArray | None, dtype: str
) -> tuple[Ball, Normed]:
    """Norm each channel by a mean and a variance in buffers. Shape (W, B, 4 C) to (W, B, 4 C).

    torch rounds the sum of the variance and 1e-5, its root and the quotient. `normed` allows five
    roundings for the same scale.
    """
    mean_WC1, variance_WC1 = running_2WC[..., None]
    five = gamma(5, FORMATS[dtype].roundoff + OWN_ROUNDOFF)
    centre = (variance_WC1 + 1e-5) ** -0.5
    shift = np.zeros_like(weight) if bias is None else bias
    found, kept = applied(
        _by_channel(x),
        exactly(mean_WC1),
        Ball(centre, centre * five, 0.0),
        weight[:, None],
        shift[:, None],
        dtype,
    )
    return _by_sample(found), kept


def batch_evaluated_back(
    g: Ball, kept: Normed, weight: FloatArray, dtype: str
) -> tuple[Ball, Gradients]:
    """Return the gradients of the input, (W, B, 4 C), and of weight and bias, (W, C).

    The mean and the scale are constants, so the gradient of the input is g * weight * scale, in any
    order. The product of weight and scale may be too small to be normal. torch multiplies the sum
    of g * (x - mean) by the scale, as in training.
    """
    form, by_channel = FORMATS[dtype], _by_channel(g)
    back = times(times(by_channel, exactly(weight[:, None]), dtype), kept.scale, dtype)
    radius = form.where_it_fits(back.radius + form.smallest * by_channel.most, back.most)
    return _by_sample(Ball(back.centre, radius, 0.0)), {
        "weight": summed(times(by_channel, kept.normed, dtype), (2,), dtype),
        "bias": summed(by_channel, (2,), dtype),
    }


@layer_kind("batch_norm")
class BatchNorm(LayerOracle):
    """BatchNorms in training, and in evaluation."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, Normed]:
        """Return the normed input, times the weight plus the bias."""
        bias = place.values("bias") if place.layer.bias else None
        if place.running is not None:
            return batch_evaluated(x, place.running, place.values("weight"), bias, dtype)
        return batch_normed(x, place.values("weight"), bias, dtype)

    def backward(
        self, place: Place, g: Ball, x: Ball, kept: Normed, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input, of the weight and of the bias."""
        if place.running is not None:
            return batch_evaluated_back(g, kept, place.values("weight"), dtype)
        return batch_normed_back(g, x, kept, place.values("weight"), dtype)
