"""Ball arithmetic encloses every floating-point evaluation, and recognises exact results."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ddp_invariants.oracle import activations, balls
from ddp_invariants.oracle.balls import FORMATS, Ball, FloatArray, exactly

REALS = npst.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 6)),
    elements=st.floats(-1000, 1000, width=32, allow_subnormal=False),
)
INTEGERS = npst.arrays(np.float32, (3, 4), elements=st.integers(-50, 50).map(float))


def inside(values: np.ndarray, ball: Ball) -> bool:
    """Return True if all computed values lie in a ball."""
    return bool((np.abs(values.astype(np.float64) - ball.centre) <= ball.radius).all())


@given(REALS, st.data())
def test_any_order_of_a_float32_product_lies_inside(a: np.ndarray, data: st.DataObject) -> None:
    """Sums of products in float32, added in a drawn order, stay within the radius."""
    b = data.draw(
        npst.arrays(
            np.float32,
            (a.shape[1], 3),
            elements=st.floats(-1000, 1000, width=32, allow_subnormal=False),
        )
    )
    ball = balls.product(exactly(a.astype(float)), exactly(b.astype(float)), "float32", a.shape[1])
    order = data.draw(st.permutations(range(a.shape[1])))
    total = np.zeros((a.shape[0], 3), np.float32)
    for k in order:
        total = total + a[:, k : k + 1] * b[k : k + 1]
    assert inside(total, ball)


@given(npst.arrays(np.float64, 6, elements=st.floats(-60000, 60000)))
def test_a_number_moves_by_no_more_than_half_a_distance_when_it_is_rounded(
    values: np.ndarray,
) -> None:
    """In float16, also below its smallest normal number."""
    moved = np.abs(values.astype(np.float16).astype(np.float64) - values)
    assert (moved <= balls.rounding(values, FORMATS["float16"])).all()
    known = balls.rounding(np.array([0.0, 1.0, -1.9, 2.0, np.inf]), FORMATS["float16"])
    assert known.tolist() == [2.0**-24, 2.0**-11, 2.0**-11, 2.0**-10, np.inf]


@given(REALS, REALS, st.floats(0, 10))
def test_numbers_that_two_balls_hold_lie_in_both(
    values: np.ndarray, shifts: np.ndarray, radius: float
) -> None:
    """A ball is never wider than the first one, and is the first one if both have nothing in common."""
    truth = values.astype(float)
    away = np.resize(shifts, truth.shape).astype(float) % 1 * radius
    first = Ball(truth + away, np.full_like(truth, radius), 0.0)
    second = Ball(truth - away / 2, np.full_like(truth, radius / 2), 0.0)
    common = balls.both(first, second)
    assert inside(truth, Ball(common.centre, common.radius + 2.0**-40 * (1 + common.most), 0.0))
    assert (common.radius <= first.radius).all()
    apart = balls.both(first, Ball(truth + 1000, np.zeros_like(truth), 0.0))
    assert (apart.centre == first.centre).all()


@given(INTEGERS, INTEGERS)
def test_products_of_small_integers_have_radius_zero(a: np.ndarray, b: np.ndarray) -> None:
    """Integer arithmetic below 2**24 is exact in float32, and the ball's radius is 0."""
    ball = balls.product(exactly(a.astype(float)), exactly(b.T.astype(float)), "float32", 4)
    assert (ball.radius == 0).all()
    assert (ball.centre == a @ b.T).all()


def test_sums_beyond_the_precision_are_not_called_exact() -> None:
    """The ball of 2**24 + 1 has a positive radius, because this number is no float32."""
    ball = balls.plus(exactly(np.array([2.0**24])), exactly(np.array([1.0])), "float32")
    assert ball.radius[0] > 0
    assert inside(np.array([np.float32(2**24) + np.float32(1)]), ball)


@given(npst.arrays(np.float64, 5, elements=st.floats(-1e30, 1e30, allow_subnormal=False)))
def test_quantum_is_the_largest_power_of_two_that_divides(values: FloatArray) -> None:
    """Every value is an odd multiple of its quantum, except that zero is a multiple of all."""
    for value, quantum in zip(values, balls.quantum_of(values), strict=True):
        assert Fraction(value) % Fraction(quantum) == 0
        assert value == 0 or (Fraction(value) / Fraction(quantum)) % 2 != 0


AVERAGES = {
    "sum, then divide": lambda g_WP, w: np.add.reduce(g_WP) / np.float32(w),
    "divide, then sum": lambda g_WP, w: np.add.reduce(g_WP / np.float32(w)),
    "multiply by 1/W, then sum": lambda g_WP, w: np.add.reduce(
        g_WP * (np.float32(1) / np.float32(w))
    ),
    "backwards": lambda g_WP, w: np.add.reduce(g_WP[::-1]) / np.float32(w),
}


@pytest.mark.parametrize("style", AVERAGES)
@given(world_size=st.integers(1, 6), data=st.data())
def test_every_way_of_averaging_lies_within_the_bound(
    style: str, world_size: int, data: st.DataObject
) -> None:
    """The bound gamma_(W+K) covers every style of averaging in float32, at any magnitude."""
    g_WP = data.draw(
        npst.arrays(
            np.float32, (world_size, 4), elements=st.floats(-(2.0**100), 2.0**100, width=32)
        )
    )
    exact = g_WP.astype(np.float64)
    mean = balls.mean_over_ranks(
        exact, 0 * exact, np.abs(exact), balls.quantum_of(exact).min(0), FORMATS["float32"], 1
    )
    assert inside(AVERAGES[style](g_WP, world_size), mean)


def test_a_missing_division_leaves_the_bound_a_million_fold() -> None:
    """A sum instead of a mean is over a million radii away: the bound is no loose tolerance."""
    exact = np.array([[0.1], [0.2], [0.3]])
    mean = balls.mean_over_ranks(
        exact, 0 * exact, np.abs(exact), np.zeros(1), FORMATS["float32"], 1
    )
    assert abs(exact.sum() - mean.centre[0]) > 1e6 * mean.radius[0]


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_means_of_integers_are_exact_at_powers_of_two_only(world_size: int) -> None:
    """The radius is 0 at W = 1, 2, 4, 8, and positive at W = 3, because 1/3 is no float."""
    integers = np.ones((world_size, 1))
    form = FORMATS["float32"]
    assert (
        balls.mean_over_ranks(integers, 0 * integers, integers, np.ones(1), form, 1).radius[0] == 0
    )
    three = np.ones((3, 1))
    assert balls.mean_over_ranks(three, 0 * three, three, np.ones(1), form, 1).radius[0] > 0


def test_relu_of_an_unknown_sign_lets_its_backward_be_anything_between() -> None:
    """If a ball contains 0, the derivative of ReLU may be anything from 0 to 1."""
    ball = Ball(np.array([1e-9, 1.0, -1.0, 0.0]), np.array([1e-8, 1e-8, 1e-8, 0.0]), 0.0)
    result, factor = activations.relu(ball)
    assert factor.centre.tolist() == [0.5, 1.0, 0.0, 0.0]
    assert factor.radius.tolist() == [0.5, 0.0, 0.0, 0.0]
    assert result.radius[2] == result.radius[3] == 0


def test_overflow_makes_the_radius_infinite() -> None:
    """A result that overflows the format has an infinite radius, so that it is not compared."""
    ball = balls.times(exactly(np.array([2.0**100])), exactly(np.array([2.0**100])), "float32")
    assert np.isinf(ball.radius[0])
