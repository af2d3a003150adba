"""Ball arithmetic: numbers with a radius that no correct floating-point evaluation can leave.

The radius is derived operation by operation from the standard model of floating-point arithmetic;
no tolerance is chosen anywhere.

[Note: exact arithmetic] Take numbers that are multiples of a power of two q, and whose sums of
magnitudes stay below 2**p * q (p the format's precision). Additions and multiplications of such
numbers round nothing, in any order. Each ball carries the quantum q, so such elements have radius 0
and must agree to the last bit. Cases with `values="integer"` are made so.

Suffixes: W ranks, P elements of all trainable parameters end to end.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., chapters 3 and 4.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.formats import LARGEST, ROUNDOFF, SMALLEST
from ddp_invariants.records.evidence import Layout

FloatArray = NDArray[np.float64]

OWN_ROUNDOFF = 2.0**-53
"""The unit roundoff of the oracle's own arithmetic, which is added to the dtype's roundoff."""


def gamma(terms: float | FloatArray | NDArray[np.intp], roundoff: float | FloatArray) -> FloatArray:
    """Return Higham's gamma_n = n u / (1 - n u), the relative error of n roundings in any order."""
    # Plain floats are the common case, and take a tenth of numpy's time.
    if isinstance(terms, int | float) and isinstance(roundoff, float):
        share = terms * roundoff
        return np.float64(  # type: ignore[return-value]  # 0-d, as below
            share / (1 - share) if share < 1 else math.inf
        )
    product = np.asarray(terms * roundoff)
    return np.where(product < 1, product / np.maximum(1 - product, 1e-300), np.inf)


def quantum_of(values: FloatArray) -> FloatArray:
    """Return the largest power of two of which each value is an integer multiple.

    The result has the same shape; it is 2**200 for zero.
    """
    mantissa, exponent = np.frexp(values)
    whole = np.abs(np.ldexp(np.where(np.isfinite(mantissa), mantissa, 0.5), 53)).astype(np.int64)
    lowest = np.ldexp((whole & -whole).astype(np.float64), exponent - 53)
    return np.where(values == 0, 2.0**200, lowest)


def _shared_quantum(*arrays: FloatArray) -> float:
    return min((float(quantum_of(a).min()) for a in arrays if a.size), default=2.0**200)


@dataclass(frozen=True)
class Ball:
    """Numbers known up to a radius.

    Attributes:
        centre: Any shape, float64.
        radius: The same shape, at least 0; inf for a number of which nothing is known.
        quantum: A power of two of which all centres are multiples, for the whole array or per
            element; 0 if none is known.
    """

    centre: FloatArray
    radius: FloatArray
    quantum: float | FloatArray

    @property
    def most(self) -> FloatArray:
        """The largest magnitude the numbers can have."""
        most: FloatArray = np.abs(self.centre) + self.radius
        return most

    def times(self, count: int) -> "Ball":
        """Return the sum of this many such numbers, if these are the mean of the summands."""
        return Ball(self.centre * count, self.radius * count, self.quantum)


def exactly(values: FloatArray) -> Ball:
    """Return numbers known to the last bit, with one quantum for all of them."""
    return Ball(values, np.zeros_like(values), _shared_quantum(values))


def rounding(values: FloatArray, form: "Format") -> FloatArray:
    """Return how far numbers of these magnitudes, or smaller ones, move when they are rounded once.

    That is half of the distance between neighbours: the unit roundoff times the power of two below.
    Numbers near zero may move by the smallest number that is kept.
    """
    _, exponents = np.frexp(values)
    half = np.maximum(np.ldexp(form.roundoff, exponents - 1), form.smallest)
    return np.where(np.isfinite(values), np.where(values == 0, form.smallest, half), np.inf)


def both(first: Ball, second: Ball) -> Ball:
    """Return numbers of which two statements are true; the first one's, where they have nothing in common.

    The result has the quantum of the first.
    """
    low = np.maximum(first.centre - first.radius, second.centre - second.radius)
    high = np.minimum(first.centre + first.radius, second.centre + second.radius)
    centre = (low + high) / 2
    # The ends are rounded to float64, as is the centre.
    radius = (high - low) / 2 + 2.0**-50 * np.maximum(np.abs(low), np.abs(high))
    better = (high >= low) & (radius < first.radius)
    return Ball(
        np.where(better, centre, first.centre),
        np.where(better, radius, first.radius),
        first.quantum,
    )


@dataclass(frozen=True)
class Format:
    """A floating-point format, as the bounds need it.

    The values are per element if parameters of several dtypes lie end to end.

    Attributes:
        roundoff: The unit roundoff.
        smallest: The smallest number that arithmetic surely keeps.
        largest: The largest number.
        others_P: The index of the other part of each element's complex number, or the element's own
            index if it is real; None if all elements are real.
    """

    roundoff: float | FloatArray
    smallest: float | FloatArray
    largest: float | FloatArray
    others_P: NDArray[np.intp] | None = None

    @property
    def real_P(self) -> bool | NDArray[np.bool_]:
        """Whether each element is real: True if all are, otherwise shape (P,)."""
        return self.others_P is None or self.others_P == np.arange(len(self.others_P))

    def where_it_fits(self, radius: FloatArray, most: FloatArray) -> FloatArray:
        """Return the radius, or inf where a number as large as `most` overflows.

        If one part of a complex number overflows, the other part is lost too. Torch multiplies a
        complex number by a real one as by a complex one, and infinity times the zero imaginary part
        is NaN.
        """
        fits = most <= self.largest
        known_radius: FloatArray = np.where(
            fits if self.others_P is None else fits & fits[self.others_P], radius, np.inf
        )
        return known_radius

    def rounded(
        self,
        centre: FloatArray,
        radius: FloatArray,
        most: FloatArray,
        terms: float,
        quantum: float | FloatArray,
    ) -> Ball:
        """Return the result of an operation computed in this format.

        Args:
            centre: The exact result for the operands' centres.
            radius: The effect of the operands' radii on the result.
            most: The sum of the magnitudes of all terms that are added up, radii included.
            terms: Number of roundings on the longest path from an operand to the result.
            quantum: A number of which all summands are multiples.
        """
        if (
            self.others_P is None
            and most.size
            and not radius.any()
            and isinstance(quantum, float)
            and quantum >= self.smallest
            and (highest := most.max()) * self.roundoff <= quantum
            and highest <= self.largest
        ):
            # All numbers are exact: a shortcut for the code below.
            return Ball(centre, radius, quantum)
        exact = (radius == 0) & (most * self.roundoff <= quantum) & (quantum >= self.smallest)
        rounding = gamma(terms, self.roundoff + OWN_ROUNDOFF) * most + terms * self.smallest
        rounding = np.where(exact, 0.0, rounding)
        # Sums in between may be larger than `most`, by their roundings.
        return Ball(centre, self.where_it_fits(radius + rounding, most + rounding), quantum)


FORMATS = {name: Format(ROUNDOFF[name], SMALLEST[name], LARGEST[name]) for name in ROUNDOFF}


def holds(target: str, source: str) -> bool:
    """Return whether a dtype has all numbers of another."""
    return (
        ROUNDOFF[target] <= ROUNDOFF[source]
        and SMALLEST[target] <= SMALLEST[source]
        and LARGEST[target] >= LARGEST[source]
    )


def cast(ball: Ball, source: str, target: str, *, own: str = "") -> Ball:
    """Return numbers converted from one dtype to another; widening changes nothing.

    Args:
        ball: The numbers.
        source: The dtype that they have.
        target: The dtype that they get.
        own: The dtype that they pass through on the way; "" for none.
    """
    if own and not holds(own, source):
        return cast(cast(ball, source, own), own, target)
    if holds(target, source):
        return ball
    return FORMATS[target].rounded(ball.centre, ball.radius, ball.most, 1, ball.quantum)


def product(a: Ball, b: Ball, dtype: str, terms: int, plus: Ball | None = None) -> Ball:
    """Return a @ b (+ plus) computed in a dtype; `terms` is the length of the sums."""
    centre, most = a.centre @ b.centre, a.most @ b.most
    radius = np.abs(a.centre) @ b.radius + a.radius @ b.most
    quantum = a.quantum * b.quantum
    if plus is not None:
        centre, radius, most = centre + plus.centre, radius + plus.radius, most + plus.most
        quantum, terms = np.minimum(quantum, plus.quantum), terms + 1
    return FORMATS[dtype].rounded(centre, radius, most, terms, quantum)


def times(a: Ball, b: Ball, dtype: str) -> Ball:
    """Return a * b elementwise, computed in a dtype."""
    radius = np.abs(a.centre) * b.radius + a.radius * b.most
    return FORMATS[dtype].rounded(
        a.centre * b.centre, radius, a.most * b.most, 1, a.quantum * b.quantum
    )


def plus(a: Ball, b: Ball, dtype: str, roundings: int = 1) -> Ball:
    """Return a + b elementwise, computed in a dtype.

    To add several balls one after another, pass `roundings=k` for the k-th sum. The result then
    holds for any order of the additions.
    """
    quantum = np.minimum(a.quantum, b.quantum)
    return FORMATS[dtype].rounded(
        a.centre + b.centre, a.radius + b.radius, a.most + b.most, roundings, quantum
    )


def masked(ball: Ball, factors: FloatArray, dtype: str) -> Ball:
    """Return numbers multiplied by 0, 1 or 2 each, which rounds nothing.

    Nothing is known of a number that overflows, or may have overflowed.
    """
    most = ball.most * np.maximum(factors, 1)
    radius = np.where(
        most <= FORMATS[dtype].largest, factors * np.where(factors > 0, ball.radius, 0.0), np.inf
    )
    return Ball(factors * np.where(factors > 0, ball.centre, 0.0), radius, ball.quantum)


def summed(ball: Ball, axes: tuple[int, ...], dtype: str) -> Ball:
    """Return the sum over some axes, computed in a dtype in any order."""
    terms = int(np.prod([ball.centre.shape[axis] for axis in axes]))
    return FORMATS[dtype].rounded(
        ball.centre.sum(axes), ball.radius.sum(axes), ball.most.sum(axes), terms, ball.quantum
    )


def negated(ball: Ball) -> Ball:
    """Return the numbers with the other sign."""
    return Ball(-ball.centre, ball.radius, ball.quantum)


def transposed(ball: Ball) -> Ball:
    """Return the numbers with the last two axes swapped."""
    return Ball(np.swapaxes(ball.centre, -1, -2), np.swapaxes(ball.radius, -1, -2), ball.quantum)


@dataclass(frozen=True)
class Entries:
    """The entries whose sum gives a number.

    Attributes:
        count: The largest number of entries.
        most_P: The sum of the entries' magnitudes, shape (P,).
    """

    count: int
    most_P: FloatArray


def scaled_sum(
    a: Ball, alpha: float, b: Ball, beta: float, form: Format, entries: Entries | None = None
) -> Ball:
    """Return alpha a + beta b.

    At most three roundings happen, two products and a sum, and one more for each of b's entries.
    """
    most = np.abs(alpha) * a.most + np.abs(beta) * (
        b.most if entries is None else entries.most_P + b.radius
    )
    quantum = np.minimum(
        a.quantum * float(quantum_of(np.array(alpha))),
        b.quantum * float(quantum_of(np.array(beta))),
    )
    return form.rounded(
        alpha * a.centre + beta * b.centre,
        np.abs(alpha) * a.radius + np.abs(beta) * b.radius,
        most,
        3 + (0 if entries is None else entries.count),
        quantum,
    )


def scaled(ball: Ball, factor: float, form: Format) -> Ball:
    """Return numbers times a power of two.

    Nothing is rounded, except numbers that become too small to be normal, or too large.
    """
    most = ball.most * factor
    small = np.where(np.asarray(ball.quantum) * factor >= form.smallest, 0.0, form.smallest)
    radius = np.where(most <= form.largest, ball.radius * factor + small, np.inf)
    return Ball(ball.centre * factor, radius, ball.quantum * factor)


def clipped(gradient: Ball, largest: float, form: Format) -> Ball:
    """Return a gradient scaled down to a norm, as torch.nn.utils.clip_grad_norm_ does.

    The factor is min(1, largest / (norm + 1e-6)). The norm is that of the tensors' norms, and each
    of these is a sum of squares in some order: P additions, P squares and a few roots. All terms
    are not negative, so relative errors do not grow by cancellation. Squares below the smallest
    number vanish. A factor of 1 changes nothing. A square that overflows may make the factor 0;
    nothing is known then.

    Args:
        gradient: The gradient of all parameters, shape (P,).
        largest: The norm.
        form: The parameters' formats.
    """
    roundoff, smallest = (
        float(np.max(form.roundoff, initial=0.0)),
        float(np.max(form.smallest, initial=0.0)),
    )
    error = float(gamma(gradient.centre.size + 8, roundoff + OWN_ROUNDOFF))
    vanished = math.sqrt(gradient.centre.size * smallest)
    least = math.sqrt(float((np.maximum(np.abs(gradient.centre) - gradient.radius, 0) ** 2).sum()))
    most = math.sqrt(float((gradient.most**2).sum())) * (1 + error) + vanished
    if not error < 1 or not most**2 <= float(np.min(form.largest, initial=np.inf)):
        return Ball(gradient.centre, np.full_like(gradient.radius, np.inf), 0.0)
    four = float(gamma(4, roundoff + OWN_ROUNDOFF))  # A sum, a quotient, and a cast of the factor.
    low = min(1.0, largest / (most + 1e-6) * (1 - four))
    high = min(1.0, largest / (max(least * (1 - error) - vanished, 0.0) + 1e-6) * (1 + four))
    if low == 1.0:
        return gradient
    radius = (
        gradient.radius * high
        + gradient.most * ((high - low) / 2 + form.roundoff * high)
        + form.smallest
    )
    return Ball(gradient.centre * ((low + high) / 2), radius, 0.0)


COMPLEX_DIVISION = 5
"""Additional roundings of a complex number's division by a real one, compared with a real division.

PyTorch multiplies both parts by a reciprocal and multiplies the products with one another. Then it
divides by a square, or multiplies by a reciprocal of a sum. torch 2.6 rounds half of all complex
numbers when it divides them by 2.
"""


def is_power_of_two(count: int) -> bool:
    """Return whether a division by this number only changes the exponent."""
    return count & (count - 1) == 0


def mean_over_ranks(
    centre_WP: FloatArray,
    radius_WP: FloatArray,
    most_WP: FloatArray,
    quantum: float | FloatArray,
    form: Format,
    passes: int | NDArray[np.intp],
) -> Ball:
    """Return the mean of the ranks' gradients, for any way to compute it.

    Args:
        centre_WP: Local gradients, shape (W, P): exact sums if several backwards were accumulated.
        radius_WP: The largest error of a local gradient before any reduction, shape (W, P).
        most_WP: The sum of the magnitudes of a local gradient's terms, shape (W, P); its own
            magnitude for one backward. Accumulation may happen before or after the reduction, so
            these terms are the ones that are rounded.
        quantum: A number of which all terms are multiples, for all elements or per element, shape
            (P,).
        form: The format of the reduction.
        passes: Number of backwards accumulated in a local gradient, K; more if there are other
            roundings. For all elements or per element.

    Returns:
        Shape (P,). The bound is gamma_n * mean|g| + (W K + 1) eta with n = W + K. It holds for sum
        then divide, divide then sum, multiplication by fl(1/W) and any order of summation. It is 0
        for real numbers if W is a power of two and all sums are exact.
    """
    world_size = len(centre_WP)
    magnitude_P = (most_WP + radius_WP).sum(0)
    moved_P = radius_WP.mean(0)
    exact = is_power_of_two(world_size) & (moved_P == 0) & (magnitude_P * form.roundoff <= quantum)
    exact &= (quantum >= form.smallest * world_size) & form.real_P
    bound = gamma(world_size + passes, form.roundoff + OWN_ROUNDOFF) * magnitude_P / world_size
    bound = bound + (world_size * passes + 1) * form.smallest
    bound = np.where(exact, 0.0, bound)
    radius = form.where_it_fits(moved_P + bound, magnitude_P + world_size * bound)
    return Ball(centre_WP.mean(0), radius, quantum / world_size)


def format_of(layout: Layout) -> Format:
    """Return the formats of a record's elements, end to end."""
    others_P: NDArray[np.intp] | None = None
    if layout.complex_P.any():
        parts = [
            np.arange(start, end).reshape(-1, 1 + slot.complex)[:, ::-1].ravel()
            for slot, (start, end) in zip(layout.slots, pairwise(layout.starts), strict=True)
        ]
        others_P = np.concatenate(parts)
    return Format(layout.roundoff_P, layout.smallest_P, layout.per_element(LARGEST), others_P)
