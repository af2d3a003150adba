"""The optimizers in float64, for predictions of a parameter's value under another history."""

from dataclasses import dataclass

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
        state, steps = _State(np.zeros_like(self.starts_T[0]), np.zeros_like(self.starts_T[0])), 0
        p = most = self.starts_T[0]
        for number, (plan, start, g) in enumerate(
            zip(self.plans_T, self.starts_T, self.gradients_T, strict=True)
        ):
            final = number == len(self.starts_T) - 1
            if final and forgets:
                state, steps = _State(np.zeros_like(start), np.zeros_like(start)), 0
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
    """An optimizer's state of one parameter: momentum, or Adam's moments."""

    first: FloatArray
    second: FloatArray


def _sgd(
    plan: Optimizer, p: FloatArray, g: FloatArray, state: _State, _steps: int
) -> tuple[FloatArray, _State]:
    g = g + plan.weight_decay * p
    first = plan.momentum * state.first + g
    return p - plan.lr * (g + plan.momentum * first if plan.nesterov else first), _State(
        first, state.second
    )


def _adam(
    plan: Optimizer, p: FloatArray, g: FloatArray, state: _State, steps: int
) -> tuple[FloatArray, _State]:
    """Return the parameter and state after a step, with torch's defaults.

    The formulas are those of `oracle.optimizer.Optimization`.
    """
    g = g + plan.weight_decay * p if plan.kind == "adam" else g
    first, second = 0.9 * state.first + 0.1 * g, 0.999 * state.second + 0.001 * g * g
    denominator = np.sqrt(second / (1 - 0.999**steps)) + 1e-8
    kept = p * (1 - plan.lr * plan.weight_decay) if plan.kind == "adamw" else p
    return kept - plan.lr / (1 - 0.9**steps) * first / denominator, _State(first, second)
