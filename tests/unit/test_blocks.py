"""The bounds of convolution, norms and attention hold for every evaluation order in float32.

The bounds are also tight: they are no loose tolerance.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ddp_invariants.oracle.balls import Ball, FloatArray, exactly
from ddp_invariants.oracle.layers import attention, batch_norm, convolution, norm

Array = npst.arrays
f32 = np.float32


@st.composite
def samples(draw: st.DrawFn, widths: tuple[int, ...] = (1, 2, 4, 8)) -> np.ndarray:
    """Draw a batch of float32 samples of shape (1, 2, D).

    The numbers are often far from zero and nearly equal, so that a variance cancels.
    """
    width, away = draw(st.sampled_from(widths)), draw(st.sampled_from((0.0, 3.0, 1000.0)))
    spread = draw(
        Array(f32, (1, 2, width), elements=st.floats(-2, 2, width=32, allow_subnormal=False))
    )
    return spread + f32(away)


def inside(values: np.ndarray, ball: Ball) -> bool:
    """Return True if all computed values lie in a ball."""
    return bool((np.abs(values.astype(np.float64) - ball.centre) <= ball.radius).all())


def _added(values: np.ndarray) -> np.ndarray:
    """Return the sum over the last axis, added up from first to last."""
    total = np.zeros_like(values[..., :1])
    for k in range(values.shape[-1]):
        total = total + values[..., k : k + 1]
    return total


def _two_passes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = _added(x) / f32(x.shape[-1])
    return mean, _added((x - mean) ** 2) / f32(x.shape[-1])


def _running(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance by Welford's algorithm."""
    mean, squares = np.zeros_like(x[..., :1]), np.zeros_like(x[..., :1])
    for k in range(x.shape[-1]):
        value = x[..., k : k + 1]
        off = value - mean
        mean = mean + off / f32(k + 1)
        squares = squares + off * (value - mean)
    return mean, squares / f32(x.shape[-1])


def _squares(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean, and the mean of the squares minus the square of the mean."""
    mean = _added(x) / f32(x.shape[-1])
    return mean, np.maximum(_added(x * x) / f32(x.shape[-1]) - mean * mean, f32(0))


MOMENTS = {"two passes": _two_passes, "running": _running, "squares": _squares}


def _forwards(
    x: np.ndarray, m: np.ndarray, s: np.ndarray, gain: np.ndarray, shift: np.ndarray
) -> list[np.ndarray]:
    """Return the normed batch in three orders: mean first, scale first, gain first."""
    return [
        (x - m) * s * gain + shift,
        (x * s + -s * m) * gain + shift,
        x * (s * gain) + (shift - s * m * gain),
    ]


def _as_torch(x: np.ndarray, m: np.ndarray, s: np.ndarray, weighed: np.ndarray) -> np.ndarray:
    n = f32(x.shape[-1])
    slope = (_added(weighed) * m - _added(weighed * x)) * s * s * s / n
    back: np.ndarray = s * weighed + slope * x + (-slope * m - _added(weighed) * s / n)
    return back


def _through_the_normed(
    x: np.ndarray, m: np.ndarray, s: np.ndarray, weighed: np.ndarray
) -> np.ndarray:
    n, normed = f32(x.shape[-1]), (x - m) * s
    back: np.ndarray = s * (weighed - _added(weighed) / n - normed * (_added(weighed * normed) / n))
    return back


@pytest.mark.parametrize("moments", MOMENTS)
@settings(max_examples=150, deadline=None)
@given(x=samples(), data=st.data())
def test_every_way_to_norm_lies_within_the_bound(
    moments: str, x: np.ndarray, data: st.DataObject
) -> None:
    """Forward and backward lie within the bound for every formula and order of a norm."""
    numbers = Array(f32, x.shape[-1], elements=st.floats(-4, 4, width=32, allow_subnormal=False))
    gain, shift = data.draw(numbers), data.draw(numbers)
    g = data.draw(Array(f32, x.shape, elements=st.floats(-4, 4, width=32, allow_subnormal=False)))
    ball, kept = norm.normed(
        exactly(x.astype(float)), gain.astype(float), shift.astype(float), "float32"
    )
    mean, variance = MOMENTS[moments](x)
    scale = f32(1) / np.sqrt(variance + f32(1e-5))
    assert inside(mean, kept.mean)
    assert inside(scale, kept.scale)
    for result in _forwards(x, mean, scale, gain, shift):
        assert inside(result, ball)
    exact = exactly(x.astype(float))
    back, gradients = norm.normed_back(
        exactly(g.astype(float)), exact, kept, gain.astype(float), "float32"
    )
    for backward in (_as_torch, _through_the_normed):
        assert inside(backward(x, mean, scale, g * gain), back)
    assert inside((g * ((x - mean) * scale)).sum(1), gradients["gain"])


@st.composite
def images(draw: st.DrawFn) -> np.ndarray:
    """Draw a batch of one to four float32 images of one or two channels.

    As in `samples`, the numbers are sometimes far from zero or nearly equal.
    """
    shape, away = (
        (1, draw(st.integers(1, 4)), 4 * draw(st.integers(1, 2))),
        draw(st.sampled_from((0.0, 3.0, 1000.0))),
    )
    scale = draw(st.sampled_from((1.0, 2.0**-20, 2.0**30)))
    return (
        draw(Array(f32, shape, elements=st.floats(-2, 2, width=32, allow_subnormal=False)))
        + f32(away)
    ) * f32(scale)


def _by_channel(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[1], -1, 4).transpose(1, 0, 2).reshape(1, -1, 4 * x.shape[1])


def _take_off_first(
    x: np.ndarray, m: np.ndarray, s: np.ndarray, g: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Return a BatchNorm's backward in torch's order: subtract first, weigh last."""
    n = f32(x.shape[-1])
    slope = _added((x - m) * g) * s * s / n
    back: np.ndarray = (g - _added(g) / n - (x - m) * slope) * s * weight
    return back


@pytest.mark.parametrize("weight", [1.0, 0.0, 2.0**-30])
def test_what_torch_adds_up_before_it_scales_may_overflow(weight: float) -> None:
    """The bound is infinite if torch's unscaled sum overflows, although the result would not.

    In a BatchNorm's backward, torch adds up gradient times centred input before it scales the sum.
    """
    x, g = (
        np.array([[[1e18, -1e18, 2e18, -1e18]]], np.float32),
        np.array([[[1e21, -1e21, 1e21, 1e21]]], np.float32),
    )
    exact, of_weight = exactly(x.astype(float)), np.array([weight])
    _, kept = batch_norm.batch_normed(exact, of_weight, None, "float32")
    back, gradients = batch_norm.batch_normed_back(
        exactly(g.astype(float)), exact, kept, of_weight, "float32"
    )
    given_, gain = (
        torch.tensor(x, requires_grad=True),
        torch.tensor(of_weight, dtype=torch.float32, requires_grad=True),
    )
    torch.nn.functional.batch_norm(
        given_.reshape(1, 1, 2, 2), None, None, gain, None, training=True
    ).backward(torch.tensor(g).reshape(1, 1, 2, 2))
    assert gain.grad is not None
    assert given_.grad is not None
    assert not torch.isfinite(gain.grad).all()
    assert not torch.isfinite(given_.grad).all()
    assert np.isinf(gradients["weight"].radius).all()
    assert np.isinf(back.radius).all()


@pytest.mark.parametrize("moments", MOMENTS)
@settings(max_examples=150, deadline=None)
@given(x=images(), data=st.data())
def test_every_way_to_norm_a_batch_lies_within_the_bound(
    moments: str, x: np.ndarray, data: st.DataObject
) -> None:
    """Every formula for a batch norm, and torch's own, lies within the bound for each channel."""
    channels = x.shape[2] // 4
    numbers = Array(f32, channels, elements=st.floats(-4, 4, width=32, allow_subnormal=False))
    weight, bias = data.draw(numbers), data.draw(numbers)
    g = data.draw(Array(f32, x.shape, elements=st.floats(-4, 4, width=32, allow_subnormal=False)))
    ball, kept = batch_norm.batch_normed(
        exactly(x.astype(float)), weight.astype(float), bias.astype(float), "float32"
    )
    back, gradients = batch_norm.batch_normed_back(
        exactly(g.astype(float)), exactly(x.astype(float)), kept, weight.astype(float), "float32"
    )
    apart, of_apart, gain = _by_channel(x), _by_channel(g), weight[:, None]
    mean, variance = MOMENTS[moments](apart)
    scale = f32(1) / np.sqrt(variance + f32(1e-5))
    within = batch_norm._by_channel(ball), batch_norm._by_channel(back)
    for result in _forwards(apart, mean, scale, gain, bias[:, None]):
        assert inside(result, within[0])
    assert inside(_as_torch(apart, mean, scale, of_apart * gain), within[1])
    assert inside(_take_off_first(apart, mean, scale, of_apart, gain), within[1])
    assert inside((of_apart * ((apart - mean) * scale)).sum(2), gradients["weight"])
    given_, of_weight, of_bias = (
        torch.tensor(array, requires_grad=True) for array in (x, weight, bias)
    )
    shape = (x.shape[1], channels, 2, 2)
    normed = torch.nn.functional.batch_norm(
        given_.reshape(shape), None, None, of_weight, of_bias, training=True
    )
    normed.backward(torch.tensor(g).reshape(shape))
    assert inside(normed.detach().numpy().reshape(x.shape), ball)
    for bound, tensor in (
        (back, given_),
        (gradients["weight"], of_weight),
        (gradients["bias"], of_bias),
    ):
        assert tensor.grad is not None
        assert inside(tensor.grad.numpy().reshape(bound.centre.shape), bound)


@settings(max_examples=150, deadline=None)
@given(x=images(), data=st.data())
def test_a_batch_norm_in_evaluation_lies_within_the_bound(
    x: np.ndarray, data: st.DataObject
) -> None:
    """Every order of products, and torch's own result, by a mean and a variance that are not the batch's."""
    channels = x.shape[2] // 4
    numbers = Array(f32, channels, elements=st.floats(-4, 4, width=32, allow_subnormal=False))
    weight, bias, mean = (data.draw(numbers) for _ in range(3))
    variance = abs(data.draw(numbers))
    g = data.draw(Array(f32, x.shape, elements=st.floats(-4, 4, width=32, allow_subnormal=False)))
    running = np.stack([[mean], [variance]]).astype(float).repeat(len(x), 1)
    ball, kept = batch_norm.batch_evaluated(
        exactly(x.astype(float)), running, weight.astype(float), bias.astype(float), "float32"
    )
    back, gradients = batch_norm.batch_evaluated_back(
        exactly(g.astype(float)), kept, weight.astype(float), "float32"
    )
    apart, of_apart, gain = _by_channel(x), _by_channel(g), weight[:, None]
    scale = f32(1) / np.sqrt(variance[:, None] + f32(1e-5))
    for result in _forwards(apart, mean[:, None], scale, gain, bias[:, None]):
        assert inside(result, batch_norm._by_channel(ball))
    for result in (of_apart * (scale * gain), of_apart * gain * scale, of_apart * scale * gain):
        assert inside(result, batch_norm._by_channel(back))
    given_, of_weight, of_bias = (
        torch.tensor(array, requires_grad=True) for array in (x, weight, bias)
    )
    shape = (x.shape[1], channels, 2, 2)
    normed = torch.nn.functional.batch_norm(
        given_.reshape(shape),
        torch.tensor(mean),
        torch.tensor(variance),
        of_weight,
        of_bias,
        training=False,
    )
    normed.backward(torch.tensor(g).reshape(shape))
    assert inside(normed.detach().numpy().reshape(x.shape), ball)
    for bound, tensor in (
        (back, given_),
        (gradients["weight"], of_weight),
        (gradients["bias"], of_bias),
    ):
        assert tensor.grad is not None
        assert inside(tensor.grad.numpy().reshape(bound.centre.shape), bound)


@settings(max_examples=200, deadline=None)
@given(
    scores=Array(f32, (1, 1, 2, 2), elements=st.floats(-120, 120, width=32, allow_subnormal=False))
)
def test_every_way_to_share_lies_within_the_bound(scores: np.ndarray) -> None:
    """A softmax lies within the bound, with or without the maximum subtracted, or as a logistic."""
    ball = attention._shares(exactly(scores.astype(float)), "float32")
    off = np.exp(scores - scores.max(-1, keepdims=True))
    assert inside(off / off.sum(-1, keepdims=True), ball)
    with np.errstate(over="ignore"):
        assert inside(f32(1) / (f32(1) + np.exp(scores[..., ::-1] - scores)), ball)


def test_the_bounds_are_no_tolerance() -> None:
    """For ordinary numbers the bounds are tight, relative to the largest number.

    The bounds are below a thousandth of it for both kinds of norm, and below a ten-thousandth for
    attention.
    """
    rng = np.random.default_rng(0)
    x = exactly(rng.uniform(-1, 1, (1, 4, 8)).astype(f32).astype(float))
    g = exactly(rng.uniform(-1, 1, (1, 4, 8)).astype(f32).astype(float))
    _, kept = norm.normed(x, np.ones(8), np.zeros(8), "float32")
    back, _ = norm.normed_back(g, x, kept, np.ones(8), "float32")
    assert back.radius.max() < 1e-3 * np.abs(back.centre).max()
    normed, kept = batch_norm.batch_normed(x, np.ones(2), np.zeros(2), "float32")
    back, gradients = batch_norm.batch_normed_back(g, x, kept, np.ones(2), "float32")
    for ball in (normed, back, *gradients.values()):
        assert ball.radius.max() < 1e-3 * np.abs(ball.centre).max()
    weights: dict[str, FloatArray] = {
        name: rng.uniform(-1, 1, (4, 4)).astype(f32).astype(float)
        for name in ("query", "key", "value")
    }
    _, attended = attention.attended(x, weights, "float32")
    back, gradients = attention.attended_back(g, attended, weights, "float32")
    for ball in (back, *gradients.values()):
        assert ball.radius.max() < 1e-4 * np.abs(ball.centre).max()


@pytest.mark.parametrize("size", [1e18, 1e25, 1e38])
def test_what_may_overflow_is_not_known(size: float) -> None:
    """The bound is infinite where squares or products may exceed the largest float32.

    In these cases torch gives NaN, infinity or a wrong number.
    """
    x = exactly(size * np.array([[[1.0, -1.0, 0.5, 2.0] * 8]]))
    weights = dict.fromkeys(("query", "key", "value"), np.eye(16))
    for balls in (
        attention.attended(x, weights, "float32"),
        norm.normed(x, np.ones(32), np.zeros(32), "float32"),
        batch_norm.batch_normed(x, np.ones(8), np.zeros(8), "float32"),
    ):
        assert (not np.isfinite(balls[0].radius).any()) == (size > 1e18)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_convolution_of_integers_is_exact(channels: int) -> None:
    """A convolution of integers equals a loop over outputs, channels, places and taps exactly."""
    rng = np.random.default_rng(channels)
    x, kernel = (
        rng.integers(-3, 4, (1, 2, 4 * channels)).astype(float),
        rng.integers(-3, 4, (3, channels, 2, 2)).astype(float),
    )
    g = rng.integers(-3, 4, (1, 2, 12)).astype(float)
    padded = np.pad(x.reshape(2, channels, 2, 2), ((0, 0), (0, 0), (1, 0), (1, 0)))
    result, of_kernel = np.zeros((2, 3, 2, 2)), np.zeros_like(kernel)
    of_padded = np.zeros_like(padded)
    g_BOIJ = g.reshape(2, 3, 2, 2)
    for b, o, c, i, j, a, d in np.ndindex(2, 3, channels, 2, 2, 2, 2):
        result[b, o, i, j] += kernel[o, c, a, d] * padded[b, c, i + a, j + d]
        of_kernel[o, c, a, d] += g_BOIJ[b, o, i, j] * padded[b, c, i + a, j + d]
        of_padded[b, c, i + a, j + d] += g_BOIJ[b, o, i, j] * kernel[o, c, a, d]
    convolved = convolution.convolved(exactly(x), exactly(kernel), None, "float32")
    back, gradients = convolution.convolved_back(exactly(g), exactly(x), exactly(kernel), "float32")
    for ball, expected in (
        (convolved, result),
        (back, of_padded[:, :, 1:, 1:]),
        (gradients["kernel"], of_kernel),
        (gradients["bias"], g_BOIJ.sum((0, 2, 3))),
    ):
        assert (ball.radius == 0).all()
        assert (ball.centre == expected.reshape(ball.centre.shape)).all()
