"""LayerNorms over all of a sample: (x - mean) / sqrt(variance + 1e-5) * gain + shift.

Every bound holds for each way torch may compute a norm on CPU: any order of summation, any fused
multiply-add, one pass over the numbers or two.

Suffixes: W ranks, B batch, D width, C channels, M numbers with one mean.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.oracle.balls import (
    FORMATS,
    OWN_ROUNDOFF,
    Ball,
    FloatArray,
    exactly,
    gamma,
    negated,
    plus,
    summed,
    times,
)
from ddp_invariants.oracle.layer import Gradients, LayerOracle, Place, layer_kind
from ddp_invariants.oracle.sums import as_column, sum_of


@dataclass(frozen=True)
class Normed:
    """The values a norm's backward needs of its forward.

    Attributes:
        mean: The means. Shape (W, n, 1).
        scale: 1 / sqrt(variance + 1e-5). Shape (W, n, 1).
        normed: The normed input.
    """

    mean: Ball
    scale: Ball
    normed: Ball


def normed(x: Ball, gain: FloatArray, shift: FloatArray, dtype: str) -> tuple[Ball, Normed]:
    """Norm each sample's numbers. Shape (W, B, D) to (W, B, D); gain and shift (D,).

    Or norm each channel's numbers in a batch. Shape (W, C, M) to (W, C, M); gain and shift (C, 1).

    With u the roundoff, D how many have one mean and M the largest magnitude of these: a running
    mean (Welford's) takes on at most 9 u M of error with each number or each mean of a part it is
    joined to, hence 9 D u M; a sum that is divided less. Each of the D terms (x - mean)**2 is off
    by 4 M (9 D + 2) u M + 4 u M**2 at most, their sum by D u 4 D M**2, hence the variance by (40 D
    + 12) u M**2; the mean of the squares less the square of the mean by less.
    """
    form, width = FORMATS[dtype], x.centre.shape[-1]
    roundoff = form.roundoff + OWN_ROUNDOFF
    most = x.most.max(-1, keepdims=True)
    mean = x.centre.mean(-1, keepdims=True)
    mean_radius = (
        x.radius.mean(-1, keepdims=True) + gamma(9 * width, roundoff) * most + form.smallest
    )
    off, moved = x.centre - mean, x.radius + x.radius.mean(-1, keepdims=True)
    variance = (off**2).mean(-1, keepdims=True)
    variance_radius = (
        (2 * np.abs(off) * moved + moved**2).mean(-1, keepdims=True)
        + gamma(40 * width + 12, roundoff) * most**2
        + form.smallest
    )
    five = gamma(5, roundoff)
    high = (np.maximum(variance - variance_radius, 0) + 1e-5) ** -0.5 * (1 + five)
    low = (variance + variance_radius + 1e-5) ** -0.5 * (1 - five)
    middle = Ball(mean, mean_radius, 0.0)
    known = np.isfinite(variance_radius) & (width * most**2 <= form.largest)
    scale = Ball((high + low) / 2, np.where(known, (high - low) / 2, np.inf), 0.0)
    return applied(x, middle, scale, gain, shift, dtype)


def applied(
    x: Ball, middle: Ball, scale: Ball, gain: FloatArray, shift: FloatArray, dtype: str
) -> tuple[Ball, Normed]:
    """Norm numbers by a known mean and a known scale. Shapes as in `normed`.

    torch may subtract the mean first, or multiply both before, by the gain too: at most six
    roundings.
    """
    form, off = FORMATS[dtype], x.centre - middle.centre
    apart = Ball(
        off * scale.centre,
        np.abs(off) * scale.radius + (x.radius + middle.radius) * scale.most,
        0.0,
    )
    result = form.rounded(apart.centre, apart.radius, (x.most + middle.most) * scale.most, 6, 0.0)
    weighed = times(result, exactly(gain), dtype)
    # The scale times the gain may fall below the smallest number before x is multiplied by it.
    faint = form.smallest * (x.most + middle.most)
    # The shift is added to the whole, or to what the mean makes of it, and that to the rest.
    shifted = form.rounded(
        weighed.centre + shift, weighed.radius + faint, weighed.most + np.abs(shift), 2, 0.0
    )
    # If torch multiplies both first, the products must not overflow.
    fits = _fits((x.most, middle.most), scale.most, np.abs(gain), dtype=dtype)
    return _where_it_fits(shifted, fits), Normed(middle, scale, result)


def _fits(
    added: tuple[FloatArray, FloatArray], *factors: FloatArray | float, dtype: str
) -> NDArray[np.bool_]:
    """Return whether a sum of two magnitudes times factors cannot overflow in any order."""
    with np.errstate(over="ignore"):
        magnitude = added[0] + added[1]
        for factor in factors:
            magnitude = magnitude * np.maximum(factor, 1)
        fits: NDArray[np.bool_] = 4 * magnitude <= FORMATS[dtype].largest
    return fits


def normed_back(
    g: Ball, x: Ball, kept: Normed, gain: FloatArray, dtype: str
) -> tuple[Ball, Gradients]:
    """Return the gradients of the input, (W, B, D), and of gain and shift, (W, D).

    Or, where each channel's numbers are normed, (W, C, M), and of gain and shift (W, C).

    With s the scale, m the mean and G = g * gain: s G + c x - c m - s mean(G), where c = s**3 (m
    sum(G) - sum(G x)) / D, as torch computes it. Through the normed input n instead, s (G - mean(G)
    - n mean(G n)) adds the same products up in another order: D + 12 more roundings of all
    magnitudes cover it.

    The order of products is not fixed: G x or g x, or g (x - m) added up before any scale, may
    overflow although neither c nor the result does.
    """
    width = x.centre.shape[-1]
    share = Ball(
        np.array(1.0 / width), np.array(OWN_ROUNDOFF + FORMATS[dtype].roundoff) / width, 0.0
    )
    mean, scale = kept.mean, kept.scale
    weighed = times(g, exactly(gain), dtype)
    total = as_column(summed(weighed, (2,), dtype))
    cross = as_column(summed(times(weighed, x, dtype), (2,), dtype))
    cubed = times(times(scale, times(scale, scale, dtype), dtype), share, dtype)
    slope = times(plus(times(total, mean, dtype), negated(cross), dtype), cubed, dtype)
    even = times(times(total, scale, dtype), share, dtype)
    total_back = sum_of(
        [
            times(scale, weighed, dtype),
            times(slope, x, dtype),
            negated(times(slope, mean, dtype)),
            negated(even),
        ],
        dtype,
    )
    totals = weighed.most.sum(-1, keepdims=True)
    crosses = (weighed.most * x.most).sum(-1, keepdims=True)
    steepest = (totals * mean.most + crosses) * cubed.most
    most = (
        scale.most * weighed.most
        + steepest * (x.most + mean.most)
        + even.most
        + totals * scale.most / width
    )
    axes = (1,) if gain.ndim == 1 else (2,)  # The axes that share a gain.
    of_gain = summed(times(g, kept.normed, dtype), axes, dtype)
    far = x.most.max(-1, keepdims=True), mean.most
    fits = _fits(
        far,
        far[0] + far[1],
        g.most.sum(-1, keepdims=True),
        scale.most**3,
        np.abs(gain) if gain.ndim > 1 else np.abs(gain).max(initial=0),
        dtype=dtype,
    )
    of_gain = _where_it_fits(of_gain, fits[..., 0] if gain.ndim > 1 else np.all(fits, axis=1))
    back = _where_it_fits(
        FORMATS[dtype].rounded(total_back.centre, total_back.radius, most, width + 12, 0.0), fits
    )
    return back, {"gain": of_gain, "shift": summed(g, axes, dtype)}


def _where_it_fits(ball: Ball, fits: NDArray[np.bool_]) -> Ball:
    """Return a ball with an infinite radius where an intermediate result may overflow."""
    return Ball(ball.centre, np.where(fits, ball.radius, np.inf), ball.quantum)


@layer_kind("norm")
class Norm(LayerOracle):
    """LayerNorms over all of a sample."""

    def forward(self, place: Place, x: Ball, dtype: str) -> tuple[Ball, Normed]:
        """Return the normed input, times the gain plus the shift."""
        return normed(x, place.values("gain"), place.values("shift"), dtype)

    def backward(
        self, place: Place, g: Ball, x: Ball, kept: Normed, dtype: str
    ) -> tuple[Ball, Gradients]:
        """Return the gradients of the input, of the gain and of the shift."""
        return normed_back(g, x, kept, place.values("gain"), dtype)
