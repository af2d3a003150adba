"""Layers that are more than one product, in balls: convolution, norms and attention, forward and backward.

Every bound holds for each way torch may go about it on CPU: any order of summation and any fused
multiply-add, one pass over the numbers or two. What goes through a transform (Winograd's,
Fourier's) is outside, and not used: oneDNN has the first for kernels of 3 x 3 alone, NNPACK either
from a batch of 16 on.

Suffixes: W ranks, B batch, D width, N tokens, E width of a token, O and C channels out and in, M
numbers with one mean.
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
    product,
    summed,
    times,
    transposed,
)

Gradients = dict[str, Ball]
"""By a parameter's name."""


def _sum_of(balls: list[Ball], dtype: str) -> Ball:
    """Numbers added up elementwise, in any order."""

    def total(parts: list[FloatArray]) -> FloatArray:
        added: FloatArray = np.sum(np.broadcast_arrays(*parts), axis=0)
        return added

    quantum = min(float(np.min(one.quantum)) for one in balls)
    return FORMATS[dtype].rounded(
        total([one.centre for one in balls]),
        total([one.radius for one in balls]),
        total([one.most for one in balls]),
        len(balls),
        quantum,
    )


def _kept(ball: Ball) -> Ball:
    """With a last axis of length one."""
    return Ball(ball.centre[..., None], ball.radius[..., None], ball.quantum)


# Convolution: an image of 2 x 2, padded with a row above and a column to the left, under a kernel
# of 2 x 2.

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
"""Which of the kernel's four elements leads from a place of the image (columns) to one of the result (rows); 4 for none."""
_LEADS = np.stack([tap == _TAPS for tap in range(4)]).astype(np.float64)


def _as_matrix(kernel: Ball) -> Ball:
    """The product that a convolution is. Shape (O, C, 2, 2) to (4 O, 4 C)."""
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
    """Shape (W, B, 4 C) to (W, B, 4 O): sums of 4 C products at most."""
    offset = (
        None
        if bias is None
        else Ball(np.repeat(bias.centre, 4), np.repeat(bias.radius, 4), bias.quantum)
    )
    return product(x, transposed(_as_matrix(kernel)), dtype, x.centre.shape[-1], offset)


def convolved_back(g: Ball, x: Ball, kernel: Ball, dtype: str) -> tuple[Ball, Gradients]:
    """The gradient of the input, (W, B, 4 C), and those of the kernel, (W, O, 4 C), and the bias, (W, O).

    The kernel's are sums over the batch and the four places of the result at most.
    """
    (ranks, batch, _), (outputs, inputs) = g.centre.shape, kernel.centre.shape[:2]

    def by_tap(sums: FloatArray) -> FloatArray:
        places = sums.reshape(ranks, outputs, 4, inputs, 4)
        found: FloatArray = np.einsum("wopcq,tpq->woct", places, _LEADS).reshape(
            ranks, outputs, 4 * inputs
        )
        return found

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


# Norm: (x - mean) / sqrt(variance + 1e-5) * gain + shift.


@dataclass(frozen=True)
class Normed:
    """What a norm's backward needs of its forward: the mean and 1 / sqrt(variance + 1e-5), (W, n, 1), and the normed input."""

    mean: Ball
    scale: Ball
    normed: Ball


def normed(x: Ball, gain: FloatArray, shift: FloatArray, dtype: str) -> tuple[Ball, Normed]:
    """Shape (W, B, D) to (W, B, D), of each sample's numbers; gain and shift (D,).

    Or (W, C, M) to (W, C, M), of each channel's numbers in a batch; gain and shift (C, 1).

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
    # Whether the mean is taken off first, or both are multiplied before that, by the gain too: at
    # most six roundings.
    apart = Ball(
        off * scale.centre,
        np.abs(off) * scale.radius + (x.radius + middle.radius) * scale.most,
        0.0,
    )
    result = form.rounded(apart.centre, apart.radius, (x.most + middle.most) * scale.most, 6, 0.0)
    weighed = times(result, exactly(gain), dtype)
    # The shift is added to the whole, or to what the mean makes of it, and that to the rest.
    found = form.rounded(
        weighed.centre + shift, weighed.radius, weighed.most + np.abs(shift), 2, 0.0
    )
    # Where both are multiplied first, it is these that must not overflow.
    fits = _fits((x.most, middle.most), scale.most, np.abs(gain), dtype=dtype)
    return _where_it_fits(found, fits), Normed(middle, scale, result)


def _fits(
    added: tuple[FloatArray, FloatArray], *factors: FloatArray | float, dtype: str
) -> NDArray[np.bool_]:
    """Whether a sum of two magnitudes, times others, is far from overflowing however it is multiplied out."""
    with np.errstate(over="ignore"):
        found = added[0] + added[1]
        for factor in factors:
            found = found * np.maximum(factor, 1)
        fits: NDArray[np.bool_] = 4 * found <= FORMATS[dtype].largest
    return fits


def normed_back(
    g: Ball, x: Ball, kept: Normed, gain: FloatArray, dtype: str
) -> tuple[Ball, Gradients]:
    """The gradient of the input, (W, B, D), and those of gain and shift, (W, D).

    Or, where each channel's numbers are normed, (W, C, M), and of gain and shift (W, C).

    With s the scale, m the mean and G = g * gain: s G + c x - c m - s mean(G), where c = s**3 (m
    sum(G) - sum(G x)) / D, as torch computes it. Through the normed input instead, s (G - mean(G) -
    n mean(G n)), the same products are added up in
    another order: D + 12 roundings of all magnitudes on top stand for it. What is multiplied first,
    and may overflow although
    neither c nor the result does, is not fixed: G x or g x, or g (x - m) added up before any scale.
    """
    width = x.centre.shape[-1]
    share = Ball(
        np.array(1.0 / width), np.array(OWN_ROUNDOFF + FORMATS[dtype].roundoff) / width, 0.0
    )
    mean, scale = kept.mean, kept.scale
    weighed = times(g, exactly(gain), dtype)
    total = _kept(summed(weighed, (2,), dtype))
    cross = _kept(summed(times(weighed, x, dtype), (2,), dtype))
    cubed = times(times(scale, times(scale, scale, dtype), dtype), share, dtype)
    slope = times(plus(times(total, mean, dtype), negated(cross), dtype), cubed, dtype)
    even = times(times(total, scale, dtype), share, dtype)
    found = _sum_of(
        [
            times(scale, weighed, dtype),
            times(slope, x, dtype),
            negated(times(slope, mean, dtype)),
            negated(even),
        ],
        dtype,
    )
    totals, crosses = (
        weighed.most.sum(-1, keepdims=True),
        (weighed.most * x.most).sum(-1, keepdims=True),
    )
    steepest = (totals * mean.most + crosses) * cubed.most
    most = (
        scale.most * weighed.most
        + steepest * (x.most + mean.most)
        + even.most
        + totals * scale.most / width
    )
    others = (1,) if gain.ndim == 1 else (2,)  # Over all that are multiplied by one gain.
    of_gain, far = (
        summed(times(g, kept.normed, dtype), others, dtype),
        (x.most.max(-1, keepdims=True), mean.most),
    )
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
        FORMATS[dtype].rounded(found.centre, found.radius, most, width + 12, 0.0), fits
    )
    return back, {"gain": of_gain, "shift": summed(g, others, dtype)}


def _where_it_fits(ball: Ball, fits: NDArray[np.bool_]) -> Ball:
    """Numbers of which nothing is known where something on the way may overflow."""
    return Ball(ball.centre, np.where(fits, ball.radius, np.inf), ball.quantum)


def _by_channel(ball: Ball) -> Ball:
    """Shape (W, B, 4 C) to (W, C, 4 B)."""

    def turned(values: FloatArray) -> FloatArray:
        ranks, batch, width = values.shape
        return (
            values.reshape(ranks, batch, width // 4, 4)
            .transpose(0, 2, 1, 3)
            .reshape(ranks, width // 4, 4 * batch)
        )

    return Ball(turned(ball.centre), turned(ball.radius), ball.quantum)


def _by_sample(ball: Ball) -> Ball:
    """Shape (W, C, 4 B) to (W, B, 4 C)."""

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
    """Each channel of images of 2 x 2 by its own mean and variance over a rank's batch. Shape (W, B, 4 C) to (W, B, 4 C)."""
    shift = np.zeros_like(weight) if bias is None else bias
    found, kept = normed(_by_channel(x), weight[:, None], shift[:, None], dtype)
    return _by_sample(found), kept


def batch_normed_back(
    g: Ball, x: Ball, kept: Normed, weight: FloatArray, dtype: str
) -> tuple[Ball, Gradients]:
    """The gradient of the input, (W, B, 4 C), and those of weight and bias, (W, C).

    torch takes mean(g) and the rest off g first and multiplies all by weight and scale last: the
    same products, each with no more roundings than `normed_back` counts.
    """
    back, gradients = normed_back(_by_channel(g), _by_channel(x), kept, weight[:, None], dtype)
    return _by_sample(back), {"weight": gradients["gain"], "bias": gradients["shift"]}


# Attention: two tokens, one head, and what comes in added to what comes out.


@dataclass(frozen=True)
class Attended:
    """What an attention's backward needs of its forward: tokens, queries, keys and values (W, B, N, E), shares (W, B, N, N)."""

    tokens: Ball
    queries: Ball
    keys: Ball
    values: Ball
    shares: Ball


def _tokens(ball: Ball) -> Ball:
    """Shape (W, B, D) to (W, B, 2, E)."""
    shape = (*ball.centre.shape[:2], 2, -1)
    return Ball(ball.centre.reshape(shape), ball.radius.reshape(shape), ball.quantum)


def _flat(ball: Ball) -> Ball:
    """Shape (W, B, 2, E) to (W, 2 B, E)."""
    shape = (len(ball.centre), -1, ball.centre.shape[-1])
    return Ball(ball.centre.reshape(shape), ball.radius.reshape(shape), ball.quantum)


def _by_the_root(ball: Ball, width: int, dtype: str) -> Ball:
    """Times 1 / sqrt(E), a constant that is rounded to the dtype."""
    root, exact = np.array(width**-0.5), np.frexp(width**-0.5)[0] == 0.5
    rounding = 0.0 if exact else FORMATS[dtype].roundoff + OWN_ROUNDOFF
    return times(ball, Ball(root, root * rounding, float(root) if exact else 0.0), dtype)


def _logistic(x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        found: FloatArray = 1 / (1 + np.exp(-x))
    return found


def _shares(scores: Ball, dtype: str) -> Ball:
    """The softmax of two scores: the logistic function of how far one is above the other.

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
    found = spread + gamma(48, roundoff) * (centre + spread) + 4 * form.smallest
    return Ball(
        centre, np.where(known, found, np.inf), 0.0
    )  # What overflows before it may be no number.


def attended(x: Ball, weights: dict[str, FloatArray], dtype: str) -> tuple[Ball, Attended]:
    """Shape (W, B, D) to (W, B, D)."""
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
    """The gradient of the input, (W, B, D), and those of the three weights, (W, E, E)."""
    shape, g, width = g.centre.shape, _tokens(g), kept.tokens.centre.shape[-1]
    of_shares = product(g, transposed(kept.values), dtype, width)
    weighed = times(kept.shares, of_shares, dtype)
    total = _kept(summed(weighed, (3,), dtype))
    found = times(kept.shares, plus(of_shares, negated(total), dtype), dtype)
    # Whether the total is taken off before the product, or after two.
    found = FORMATS[dtype].rounded(
        found.centre, found.radius, kept.shares.most * (of_shares.most + total.most), 2, 0.0
    )
    of_scores = _by_the_root(found, width, dtype)
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
    back = _sum_of(
        [g, *(product(part, exactly(weights[name]), dtype, width) for name, part in parts.items())],
        dtype,
    )
    return Ball(back.centre.reshape(shape), back.radius.reshape(shape), back.quantum), gradients
