"""What single-process training on the global batch gives, with a bound on what a right implementation may differ by.

Plain numpy in float64, so that nothing on trial (torch included) has a part in it. Every number is a ball: a centre,
and a radius no correct evaluation in the case's dtypes can leave. The radius is derived operation by operation from
the standard model of floating-point arithmetic; no tolerance is chosen anywhere.

[Note: exact arithmetic] Numbers that are multiples of a power of two q, whose sums of magnitudes stay below 2**p * q
(p the dtype's precision), are added and multiplied without any rounding, in whatever order. The quantum q is carried
along, so such elements have radius 0 and must agree to the last bit. Cases with `values="integer"` are made so.

Each step starts from the parameters the ranks held when its forward started, so that a fault shows at the step it
happens in, and radii do not pile up over steps. That all steps are right from a right start is what makes the
trajectory right.

Suffixes: W ranks, B batch, I and O widths in and out, P elements of all trainable parameters end to end.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., chapters 3 and 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddp_invariants import draws
from ddp_invariants.case import TrainingCase
from ddp_invariants.evidence import LARGEST, ROUNDOFF, SMALLEST_NORMAL, Layout

FloatArray = NDArray[np.float64]

_OWN_ROUNDOFF = 2.0**-53
"""The oracle's own arithmetic rounds too; its roundoff is added to the dtype's."""


def gamma(terms: float | FloatArray, roundoff: float | FloatArray) -> FloatArray:
    """Higham's gamma_n = n u / (1 - n u): the relative error of n roundings in any order."""
    product = np.asarray(terms * roundoff)
    return np.where(product < 1, product / np.maximum(1 - product, 1e-300), np.inf)


def quantum_of(values: FloatArray) -> FloatArray:
    """The largest power of two each value is an integer multiple of; 2**1000 for zero. Same shape."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(np.ldexp(np.where(np.isfinite(mantissa), mantissa, 0.5), 53)).astype(np.int64)
    lowest = np.ldexp((whole & -whole).astype(np.float64), exponent - 53)
    return np.where(values == 0, 2.0**1000, lowest)


def _shared_quantum(*arrays: FloatArray) -> float:
    return min((float(quantum_of(a).min()) for a in arrays if a.size), default=2.0**1000)


@dataclass(frozen=True)
class Ball:
    """Numbers known up to a radius.

    Attributes:
        centre: Any shape, float64.
        radius: The same shape, at least 0; inf where nothing is known.
        quantum: A power of two all centres are multiples of, for one array or per element; 0 where none is known.
    """

    centre: FloatArray
    radius: FloatArray
    quantum: float | FloatArray

    @property
    def most(self) -> FloatArray:
        """The largest magnitude the numbers can have."""
        most: FloatArray = np.abs(self.centre) + self.radius
        return most


def exactly(values: FloatArray) -> Ball:
    """Numbers known to the last bit, with one quantum for all of them."""
    return Ball(values, np.zeros_like(values), _shared_quantum(values))


@dataclass(frozen=True)
class Format:
    """A floating-point format as the bounds need it; per element where parameters of several dtypes lie end to end."""

    roundoff: float | FloatArray
    smallest: float | FloatArray
    largest: float | FloatArray

    def rounded(self, centre: FloatArray, radius: FloatArray, most: FloatArray, terms: float,
                quantum: float | FloatArray) -> Ball:
        """The result of an operation computed in this format.

        Args:
            centre: The exact result for the operands' centres.
            radius: What the operands' radii let it move by.
            most: The sum of the magnitudes of everything that is added up, radii included.
            terms: Roundings on the longest way from an operand to the result.
            quantum: What all summands are multiples of.
        """
        exact = (radius == 0) & (most * self.roundoff <= quantum) & (quantum >= self.smallest)
        rounding = gamma(terms, self.roundoff + _OWN_ROUNDOFF) * most + terms * self.smallest
        radius = np.where(exact, 0.0, radius + rounding)
        return Ball(centre, np.where(most <= self.largest, radius, np.inf), quantum)


FORMATS = {name: Format(ROUNDOFF[name], SMALLEST_NORMAL[name], LARGEST[name]) for name in ROUNDOFF}


def cast(ball: Ball, source: str, target: str) -> Ball:
    """Numbers converted from one dtype to another; widening changes nothing."""
    if ROUNDOFF[target] <= ROUNDOFF[source]:
        return ball
    return FORMATS[target].rounded(ball.centre, ball.radius, ball.most, 1, ball.quantum)


def product(a: Ball, b: Ball, dtype: str, terms: int, plus: Ball | None = None) -> Ball:
    """a @ b (+ plus) computed in a dtype; `terms` is the length of the sums."""
    centre, most = a.centre @ b.centre, a.most @ b.most
    radius = np.abs(a.centre) @ b.radius + a.radius @ b.most
    quantum = a.quantum * b.quantum
    if plus is not None:
        centre, radius, most = centre + plus.centre, radius + plus.radius, most + plus.most
        quantum, terms = np.minimum(quantum, plus.quantum), terms + 1
    return FORMATS[dtype].rounded(centre, radius, most, terms, quantum)


def times(a: Ball, b: Ball, dtype: str) -> Ball:
    """a * b elementwise, computed in a dtype."""
    radius = np.abs(a.centre) * b.radius + a.radius * b.most
    return FORMATS[dtype].rounded(a.centre * b.centre, radius, a.most * b.most, 1, a.quantum * b.quantum)


def plus(a: Ball, b: Ball, dtype: str) -> Ball:
    """a + b elementwise, computed in a dtype."""
    quantum = np.minimum(a.quantum, b.quantum)
    return FORMATS[dtype].rounded(a.centre + b.centre, a.radius + b.radius, a.most + b.most, 1, quantum)


def summed(ball: Ball, axes: tuple[int, ...], dtype: str) -> Ball:
    """The sum over some axes, computed in a dtype in any order."""
    terms = int(np.prod([ball.centre.shape[axis] for axis in axes]))
    return FORMATS[dtype].rounded(ball.centre.sum(axes), ball.radius.sum(axes), ball.most.sum(axes), terms, ball.quantum)


def relu(ball: Ball) -> tuple[Ball, Ball]:
    """max(x, 0), and the factor its backward multiplies by: 0, 1, or anything between where the sign is not known."""
    centre, radius = ball.centre, ball.radius
    unknown = (centre - radius <= 0) & (centre + radius > 0)
    result = Ball(np.maximum(centre, 0), np.where(centre + radius <= 0, 0.0, radius), ball.quantum)
    factor = np.where(unknown, 0.5, centre > 0)
    return result, Ball(factor, np.where(unknown, 0.5, 0.0), 0.5 if unknown.any() else 1.0)


def transposed(ball: Ball) -> Ball:
    """With the last two axes swapped."""
    return Ball(np.swapaxes(ball.centre, -1, -2), np.swapaxes(ball.radius, -1, -2), ball.quantum)


@dataclass(frozen=True)
class Gradients:
    """Every rank's local gradients and losses at one step, as they must be.

    Attributes:
        by_name: Per trainable parameter, shape (W, *parameter shape).
        losses_W: Each rank's loss, float64.
    """

    by_name: Mapping[str, Ball]
    losses_W: Ball


def gradients(case: TrainingCase, parameters: Mapping[str, FloatArray], inputs_WBI: FloatArray,
              targets_WBO: FloatArray, tags_WB: FloatArray) -> Gradients:
    """Forward and backward of all ranks at once.

    Args:
        case: Its model.
        parameters: Values at the start of the step, by full name, in the parameters' shapes.
        inputs_WBI: Each rank's batch.
        targets_WBO: Its targets.
        tags_WB: Its samples' tags.
    """
    layers, widths = case.model.layers, case.model.widths()
    dtype = "float64" if layers[0].dtype == "float64" else "float32"
    x = cast(exactly(inputs_WBI), "float64", dtype)
    weights: dict[int, tuple[str, Ball]] = {}
    entering: list[tuple[Ball, str]] = []
    factors: list[Ball | None] = []
    for index, layer in enumerate(layers):
        entering.append((x, dtype))
        if layer.kind == "linear":
            owner = index if layer.tied is None else layer.tied
            name = f"layers.{owner}.weight"
            weights[index] = name, exactly(parameters[name].reshape(layer.outputs, widths[index]))
        if layer.kind != "statistics":
            x, dtype = cast(x, dtype, layer.dtype), layer.dtype
            entering[-1] = (x, entering[-1][1])
        if layer.kind == "linear":
            bias = exactly(parameters[f"layers.{index}.bias"]) if layer.bias else None
            x = product(x, transposed(weights[index][1]), dtype, widths[index], bias)
        elif layer.kind == "scale":
            x = times(x, exactly(parameters[f"layers.{index}.factor"]), dtype)
        factor = None
        if layer.relu:
            x, factor = relu(x)
        factors.append(factor)

    difference = plus(x, exactly(-targets_WBO), "float64")
    batch = inputs_WBI.shape[1]
    losses_W = summed(plus(summed(times(difference, difference, "float64"), (2,), "float64"), exactly(tags_WB), "float64"),
                      (1,), "float64")
    share = exactly(np.array(1.0 / batch))
    losses_W = times(losses_W, Ball(share.centre, share.centre * _OWN_ROUNDOFF, share.quantum), "float64")
    doubled = Ball(2 * difference.centre, 2 * difference.radius, 2 * difference.quantum)
    power_of_two = batch & (batch - 1) == 0
    g = times(doubled, Ball(share.centre, share.centre * (0.0 if power_of_two else _OWN_ROUNDOFF), share.quantum), "float64")
    g = cast(g, "float64", dtype)

    found: dict[str, Ball] = {}

    def add(name: str, gradient: Ball, dtype: str) -> None:
        found[name] = plus(found[name], gradient, dtype) if name in found else gradient

    for index in reversed(range(len(layers))):
        layer, factor = layers[index], factors[index]
        x, source = entering[index]
        if factor is not None:
            g = times(g, factor, dtype)
        if layer.kind == "linear":
            name, weight = weights[index]
            frozen = layers[index if layer.tied is None else layer.tied].frozen
            if not frozen:
                add(name, product(transposed(g), x, dtype, batch), dtype)
            if layer.bias and not layer.frozen:
                add(f"layers.{index}.bias", summed(g, (1,), dtype), dtype)
            if index:
                g = product(g, weight, dtype, layer.outputs)
        elif layer.kind == "scale":
            if not layer.frozen:
                add(f"layers.{index}.factor", summed(times(g, x, dtype), (1, 2), dtype), dtype)
            g = times(g, exactly(parameters[f"layers.{index}.factor"]), dtype)
        elif layer.kind == "empty" and not layer.frozen:
            zeros = np.zeros((len(inputs_WBI), 0, widths[index]))
            add(f"layers.{index}.nothing", Ball(zeros, zeros, 1.0), dtype)
        if layer.kind != "statistics":
            g, dtype = cast(g, dtype, source), source
    return Gradients(found, losses_W)


def mean_over_ranks(centre_WP: FloatArray, radius_WP: FloatArray, quantum: float | FloatArray, form: Format, world_size: int,
               passes: int) -> Ball:
    """The mean of the ranks' gradients, however it is computed.

    Args:
        centre_WP: Local gradients, shape (W, P).
        radius_WP: What they may be off by, shape (W, P).
        quantum: What all of them are multiples of, for all or per element, shape (P,).
        form: The format they are reduced in.
        world_size: W.
        passes: Backwards accumulated in a local gradient, K.

    Returns:
        Shape (P,). The bound is gamma_n * mean|g| + (W K + 1) eta with n = W + K, for sum then divide, divide then
        sum, multiplication by fl(1/W) and any order of summation; 0 where W is a power of two and all sums are exact.
    """
    magnitude_P = (np.abs(centre_WP) + radius_WP).sum(0)
    moved_P = radius_WP.mean(0)
    exact = (world_size & (world_size - 1) == 0) & (moved_P == 0) & (magnitude_P * form.roundoff <= quantum)
    exact &= quantum >= form.smallest * world_size
    bound = gamma(world_size + passes, form.roundoff + _OWN_ROUNDOFF) * magnitude_P / world_size
    bound = bound + (world_size * passes + 1) * form.smallest
    radius = np.where(exact, 0.0, moved_P + bound)
    radius = np.where(magnitude_P <= form.largest, radius, np.inf)
    return Ball(centre_WP.mean(0), radius, quantum / world_size)


@dataclass
class Optimization:
    """The optimizer of single-process training, over all trainable parameters end to end (P).

    Attributes:
        first: Momentum buffer, or Adam's first moment; None before the first step.
        second: Adam's second moment.
        steps: Updates made.
    """

    first: Ball | None = None
    second: Ball | None = None
    steps: int = 0

    def step(self, case: TrainingCase, parameters: Ball, gradient: Ball, form: Format) -> Ball:
        """The parameters after one update."""
        self.steps += 1
        if case.optimizer.kind == "sgd":
            return self._sgd(case, parameters, gradient, form)
        return self._adamw(case, parameters, gradient, form)

    def _sgd(self, case: TrainingCase, parameters: Ball, gradient: Ball, form: Format) -> Ball:
        plan = case.optimizer
        update = gradient
        if plan.weight_decay:
            update = _scaled_sum(update, 1.0, parameters, plan.weight_decay, form)
        if plan.momentum:
            update = update if self.first is None else _scaled_sum(self.first, plan.momentum, update, 1.0, form)
            self.first = update
        return _scaled_sum(parameters, 1.0, update, -plan.lr, form)

    def _adamw(self, case: TrainingCase, parameters: Ball, gradient: Ball, form: Format) -> Ball:
        """AdamW as torch computes it: at most 8 roundings of quantities no larger than those in `most` below."""
        plan, beta_1, beta_2, epsilon = case.optimizer, 0.9, 0.999, 1e-8
        eight = gamma(8, form.roundoff + _OWN_ROUNDOFF)
        zero = Ball(np.zeros_like(gradient.centre), np.zeros_like(gradient.centre), 0.0)
        m, v, g = self.first or zero, self.second or zero, gradient
        m = Ball(beta_1 * m.centre + (1 - beta_1) * g.centre,
                 beta_1 * m.radius + (1 - beta_1) * g.radius + eight * (m.most + g.most) + 8 * form.smallest, 0.0)
        v = Ball(beta_2 * v.centre + (1 - beta_2) * g.centre**2,
                 beta_2 * v.radius + (1 - beta_2) * (g.most**2 - g.centre**2)
                 + eight * (beta_2 * v.most + (1 - beta_2) * g.most**2) + 8 * form.smallest, 0.0)
        self.first, self.second = m, v
        correction_2 = 1 - beta_2**self.steps
        least = (np.sqrt(np.maximum(v.centre - v.radius, 0) / correction_2) + epsilon) * np.maximum(1 - eight, 0)
        most = (np.sqrt((v.centre + v.radius) / correction_2) + epsilon) * (1 + eight)
        highest = np.maximum((m.centre + m.radius) / least, (m.centre + m.radius) / most)
        lowest = np.minimum((m.centre - m.radius) / least, (m.centre - m.radius) / most)
        size = plan.lr / (1 - beta_1**self.steps)
        centre = parameters.centre * (1 - plan.lr * plan.weight_decay) - size * (highest + lowest) / 2
        largest = parameters.most + size * np.maximum(np.abs(highest), np.abs(lowest))
        radius = parameters.radius + size * (highest - lowest) / 2 + eight * largest + 8 * form.smallest
        return Ball(centre, np.where(largest <= form.largest, radius, np.inf), 0.0)


def _scaled_sum(a: Ball, alpha: float, b: Ball, beta: float, form: Format) -> Ball:
    """alpha a + beta b; three roundings at most: two products and a sum."""
    most = np.abs(alpha) * a.most + np.abs(beta) * b.most
    quantum = np.minimum(a.quantum * float(quantum_of(np.array(alpha))), b.quantum * float(quantum_of(np.array(beta))))
    return form.rounded(alpha * a.centre + beta * b.centre, np.abs(alpha) * a.radius + np.abs(beta) * b.radius, most, 3,
                        quantum)


def format_of(layout: Layout) -> Format:
    """The formats of a record's elements, end to end."""
    return Format(layout.roundoff_P, layout.smallest_P, layout.per_element(LARGEST))


@dataclass(frozen=True)
class Batch:
    """Every rank's samples at one step: inputs (W, B, I), targets (W, B, O), tags (W, B), and their indices per rank."""

    inputs_WBI: FloatArray
    targets_WBO: FloatArray
    tags_WB: FloatArray
    indices: list[NDArray[np.intp]]


def batches(case: TrainingCase) -> list[Batch]:
    """The batches of all steps, poison left out: whoever judges a poisoned step knows what not to compare."""
    dataset = draws.Dataset(case)
    return [Batch(dataset.inputs_ND[np.stack(dealt)], dataset.targets_ND[np.stack(dealt)], dataset.tags_N[np.stack(dealt)],
                  dealt) for dealt in draws.batches(case)]
