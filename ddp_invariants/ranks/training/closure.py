"""The closure of a step (`situations.closure`): the optimizer calls it to get loss and gradients."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


class StepClosure:
    """The closure of one step. The first call is the step's forward and backward, which are noted.

    An optimizer that calls it again gets the same passes, and these are not noted.

    Args:
        stepper: The run.
        dealt: The indices of the step's batch, in a list.
        compute: A function that runs the noted passes.

    Attributes:
        calls: The number of calls so far.
    """

    def __init__(self, stepper: "Stepper", dealt: list[Any], compute: Callable[[], object]) -> None:
        self._stepper, self._dealt, self._compute = stepper, dealt, compute
        self._loss: Tensor | None = None
        self.calls = 0

    def __call__(self) -> Tensor | None:
        """Run the passes, and return the loss."""
        self.calls += 1
        if self.calls == 1:
            self._compute()
            self._loss = self._stepper.loss
        else:
            self._repeat()
        return self._loss

    def _repeat(self) -> None:
        stepper = self._stepper
        trained, step = stepper.trained, stepper.position.step
        trained.clear_gradients(stepper.setup.case.zero_grad, step)
        batch = stepper.program.batch(self._dealt[0], step)
        self._loss, share = stepper.program.losses(trained.forward, batch)
        trained.backward(share)
        trained.after_backward()

    def returned(self, result: object) -> bool:
        """Return whether the result of the optimizer's step is the loss of the last call."""
        if self._loss is None or not isinstance(result, Tensor | float | int):
            return False
        expected = float(self._loss)
        return float(result) == expected or math.isnan(expected)
