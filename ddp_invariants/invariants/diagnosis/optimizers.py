"""The optimizers in float64, for predictions of a parameter's value under another history."""

from dataclasses import dataclass, replace

import numpy as np

from ddp_invariants.cases.formats import FloatArray
from ddp_invariants.cases.program import Optimizer


@dataclass(frozen=True)
class Past:
    """The history of a rank's parameter up to a step.

    Attributes:
        plans_T: The optimizer as it is at each step.
        starts_T: The parameter when each step's forward started.
        gradients_T: Its gradient at each step.
    """

    plans_T: list[Optimizer]
    starts_T: list[FloatArray]
    gradients_T: list[FloatArray]

    def updated(self, *, last: int = 1, forgets: bool = False) -> tuple[FloatArray, FloatArray]:
        """Return the parameter after the last step, and the magnitude of all terms added up for it.

        Args:
            last: Number of times the last update is made.
            forgets: True if the optimizer's state is lost before the last step.
        """
        nothing = np.zeros_like(self.starts_T[0])
        state, steps = _State(nothing, nothing, nothing), 0
        p = most = self.starts_T[0]
        for number, (plan, start, given) in enumerate(
            zip(self.plans_T, self.starts_T, self.gradients_T, strict=True)
        ):
            g = -given if plan.maximize else given
            final = number == len(self.starts_T) - 1
            if final and forgets:
                state, steps = _State(nothing, nothing, nothing), 0
            p, most = start, np.abs(start)
            for _ in range(last if final else 1):
                steps += 1
                before = p
                p, state = (_sgd if plan.kind == "sgd" else _adam)(plan, p, g, state, steps)
                most = (
                    most
                    + np.abs(p - before)
                    + plan.lr * (np.abs(g) + np.abs(state.first) if plan.kind == "sgd" else 1.0)
                )
        return p, most


@dataclass(frozen=True)
class _State:
    """An optimizer's state of one parameter: momentum, or Adam's moments and AMSGrad's maximum."""

    first: FloatArray
    second: FloatArray
    largest: FloatArray


def _sgd(
    plan: Optimizer, p: FloatArray, g: FloatArray, state: _State, _steps: int
) -> tuple[FloatArray, _State]:
    g = g + plan.weight_decay * p
    first = plan.momentum * state.first + g
    return p - plan.lr * (g + plan.momentum * first if plan.nesterov else first), replace(
        state, first=first
    )


def _adam(
    plan: Optimizer, p: FloatArray, g: FloatArray, state: _State, steps: int
) -> tuple[FloatArray, _State]:
    """Return the parameter and state after a step.

    The formulas are those of `oracle.optimizer.Optimization`.
    """
    g = g + plan.weight_decay * p if plan.kind == "adam" else g
    beta_1, beta_2 = plan.beta_1, plan.beta_2
    first = beta_1 * state.first + (1 - beta_1) * g
    second = beta_2 * state.second + (1 - beta_2) * g * g
    largest = np.maximum(state.largest, second)
    divisor = largest if plan.amsgrad else second
    denominator = np.sqrt(divisor / (1 - beta_2**steps)) + plan.epsilon
    kept = p * (1 - plan.lr * plan.weight_decay) if plan.kind == "adamw" else p
    moved = plan.lr / (1 - beta_1**steps) * first / denominator
    return kept - moved, _State(first, second, largest)
