"""The optimizers of a case, recomputed in float64."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ddp_invariants.cases.program import Optimizer
from ddp_invariants.oracle.balls import (
    OWN_ROUNDOFF,
    Ball,
    Entries,
    Format,
    gamma,
    negated,
    scaled_sum,
)


def _larger(one: Ball | None, other: Ball) -> Ball:
    """Return the elementwise maximum of two quantities that lie in their balls."""
    if one is None:
        return other
    lowest = np.maximum(one.centre - one.radius, other.centre - other.radius)
    highest = np.maximum(one.centre + one.radius, other.centre + other.radius)
    rounding = 4 * OWN_ROUNDOFF * np.abs(highest)
    return Ball((lowest + highest) / 2, (highest - lowest) / 2 + rounding, 0.0)


def _where(chosen_P: NDArray[np.bool_], chosen: Ball, default: Ball) -> Ball:
    """Return the elements of `chosen` at the chosen places, and of `default` elsewhere."""
    return Ball(
        np.where(chosen_P, chosen.centre, default.centre),
        np.where(chosen_P, chosen.radius, default.radius),
        np.where(chosen_P, chosen.quantum, default.quantum),
    )


@dataclass
class Optimization:
    """The optimizer of single-process training, over all trainable parameters end to end (P).

    Attributes:
        first: The momentum buffer, or Adam's first moment; None before the first step.
        second: Adam's second moment.
        largest: The largest second moment so far, of AMSGrad only.
        steps: The number of updates; one number per element once an update left elements out.
        lost: True for elements whose second moment may have overflowed, which then stays infinite.
    """

    first: Ball | None = None
    second: Ball | None = None
    largest: Ball | None = None
    steps: int | NDArray[np.intp] = 0
    lost: bool | NDArray[np.bool_] = False

    def step(
        self,
        plan: Optimizer,
        parameters: Ball,
        gradient: Ball,
        form: Format,
        left_out_P: NDArray[np.bool_] | None = None,
        entries: Entries | None = None,
    ) -> Ball:
        """Return the parameters after one update.

        Args:
            plan: The optimizer.
            parameters: The parameters before the update.
            gradient: The gradient of all parameters.
            form: The formats of the parameters.
            left_out_P: True for elements without a gradient, which keep their value and state.
            entries: The entries whose sum a sparse gradient is. Plain SGD may subtract them one
                after another.
        """
        if plan.maximize:
            gradient = negated(gradient)
        if entries is not None:
            updated = scaled_sum(parameters, 1.0, gradient, -plan.lr, form, entries)
            return updated if left_out_P is None else _where(left_out_P, parameters, updated)
        update = self._sgd if plan.kind == "sgd" else self._adam
        if left_out_P is None or not left_out_P.any():
            self.steps = self.steps + 1
            return update(plan, parameters, gradient, form)
        nothing = Ball(np.zeros_like(gradient.centre), np.zeros_like(gradient.centre), 2.0**200)
        first, second, steps = self.first or nothing, self.second or nothing, self.steps
        largest, lost = self.largest or nothing, self.lost
        self.steps = steps + 1
        updated = update(plan, parameters, gradient, form)
        self.steps = np.where(left_out_P, steps, self.steps)
        self.first = self.first and _where(left_out_P, first, self.first)
        self.second = self.second and _where(left_out_P, second, self.second)
        self.largest = self.largest and _where(left_out_P, largest, self.largest)
        self.lost = np.where(left_out_P, lost, self.lost)
        return _where(left_out_P, parameters, updated)

    def step_groups(
        self,
        plans: Sequence[Optimizer],
        group_P: NDArray[np.intp],
        parameters: Ball,
        gradient: Ball,
        form: Format,
        left_out_P: NDArray[np.bool_] | None = None,
        entries: Entries | None = None,
    ) -> Ball:
        """Return the parameters after one update of several groups with options of their own.

        Args:
            plans: The optimizer as it is for each group; options other than the learning rate and
                weight decay are equal.
            group_P: The number of each element's group.
            parameters: As in `step`, like the rest.
            gradient: The gradient of all parameters.
            form: The formats of the parameters.
            left_out_P: True for elements without a gradient.
            entries: The entries whose sum a sparse gradient is.
        """
        before = replace(self)
        updated = self.step(plans[0], parameters, gradient, form, left_out_P, entries)
        for number, plan in enumerate(plans[1:], 1):
            group, mine_P = replace(before), group_P == number
            part = group.step(plan, parameters, gradient, form, left_out_P, entries)
            updated = _where(mine_P, part, updated)
            self.first = self.first and group.first and _where(mine_P, group.first, self.first)
            self.second = self.second and group.second and _where(mine_P, group.second, self.second)
            self.largest = (
                self.largest and group.largest and _where(mine_P, group.largest, self.largest)
            )
            self.lost = np.where(mine_P, group.lost, self.lost)
        return updated

    def _sgd(self, plan: Optimizer, parameters: Ball, gradient: Ball, form: Format) -> Ball:
        """Return the parameters after a step of SGD as torch computes it.

        Torch's fused kernels round at the same places as its loop, or at fewer.
        """
        update = gradient
        if plan.weight_decay:
            update = scaled_sum(update, 1.0, parameters, plan.weight_decay, form)
        if plan.momentum:
            decayed = update
            update = (
                update
                if self.first is None
                else scaled_sum(self.first, plan.momentum, update, 1.0, form)
            )
            self.first = update
            update = (
                scaled_sum(decayed, 1.0, update, plan.momentum, form) if plan.nesterov else update
            )
        return scaled_sum(parameters, 1.0, update, -plan.lr, form)

    def _adam(self, plan: Optimizer, parameters: Ball, gradient: Ball, form: Format) -> Ball:
        """Return the parameters after a step of Adam or AdamW as torch computes them.

        Torch makes at most 8 roundings of quantities that are no larger than `most` below. The
        number includes the roundings of constants: vectorised fused kernels hold their constants
        in the parameter's dtype.
        """
        decoupled = plan.weight_decay if plan.kind == "adamw" else 0.0
        if plan.weight_decay and plan.kind == "adam":
            gradient = scaled_sum(gradient, 1.0, parameters, plan.weight_decay, form)
        beta_1, beta_2, epsilon = plan.beta_1, plan.beta_2, plan.epsilon
        eight = gamma(8, form.roundoff + OWN_ROUNDOFF)
        zero = Ball(np.zeros_like(gradient.centre), np.zeros_like(gradient.centre), 0.0)
        m, v, g = self.first or zero, self.second or zero, gradient
        m = Ball(
            beta_1 * m.centre + (1 - beta_1) * g.centre,
            beta_1 * m.radius
            + (1 - beta_1) * g.radius
            + eight * (m.most + g.most)
            + 8 * form.smallest,
            0.0,
        )
        v = Ball(
            beta_2 * v.centre + (1 - beta_2) * g.centre**2,
            beta_2 * v.radius
            + (1 - beta_2) * (g.most**2 - g.centre**2)
            + eight * (beta_2 * v.most + (1 - beta_2) * g.most**2)
            + 8 * form.smallest,
            0.0,
        )
        self.first, self.second = m, v
        self.lost = self.lost | (g.most**2 > form.largest) | (v.most > form.largest)
        if plan.amsgrad:
            self.largest = v = _larger(self.largest, v)
        correction_2 = 1 - beta_2**self.steps
        # In a format that does not keep epsilon, the denominator may be zero.
        kept = np.where(np.asarray(form.smallest) <= epsilon, epsilon, 0.0)
        least = (np.sqrt(np.maximum(v.centre - v.radius, 0) / correction_2) + kept) * np.maximum(
            1 - eight, 0
        )
        known, least = least > 0, np.where(least > 0, least, epsilon)
        most = (np.sqrt((v.centre + v.radius) / correction_2) + epsilon) * (1 + eight)
        highest = np.maximum((m.centre + m.radius) / least, (m.centre + m.radius) / most)
        lowest = np.minimum((m.centre - m.radius) / least, (m.centre - m.radius) / most)
        size = plan.lr / (1 - beta_1**self.steps)
        centre = parameters.centre * (1 - plan.lr * decoupled) - size * (highest + lowest) / 2
        largest = parameters.most + size * np.maximum(np.abs(highest), np.abs(lowest))
        radius = (
            parameters.radius + size * (highest - lowest) / 2 + eight * largest + 8 * form.smallest
        )
        fits = (largest <= form.largest) & ~self.lost & known
        return Ball(centre, np.where(fits, radius, np.inf), 0.0)
