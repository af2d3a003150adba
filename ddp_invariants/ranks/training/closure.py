"""The closure of a step (`situations.closure`): the optimizer calls it to get loss and gradients."""

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Computed, Stepper


class StepClosure:
    """The closure of one step. The first call is the step's forward and backward, which are noted.

    An optimizer that calls it again gets the same passes, and these are not noted.

    Args:
        stepper: The run.
        dealt: The indices of the step's batch, in a list.

    Attributes:
        calls: The number of calls so far.
        computed: The result of the noted passes; None before the first call.
    """

    def __init__(self, stepper: "Stepper", dealt: list[Any]) -> None:
        self._stepper, self._dealt = stepper, dealt
        self._loss: Tensor | None = None
        self.calls = 0
        self.computed: Computed | None = None

    def __call__(self) -> Tensor | None:
        """Run the passes, and return the loss."""
        self.calls += 1
        if self.calls == 1:
            self.computed = self._stepper.compute(self._dealt)
            self._loss = self._stepper.loss
        else:
            self._repeat()
        self._stepper.position.phase = "optimizer step"
        return self._loss

    def _repeat(self) -> None:
        stepper = self._stepper
        stepper.position.phase = "a closure called again"
        trained, step = stepper.trained, stepper.position.step
        trained.clear_gradients(stepper.setup.case.zero_grad, step)
        batch = stepper.program.batch(self._dealt[0], step)
        self._loss, share = stepper.program.losses(trained.forward, batch, trained.replica)
        trained.backward(share)
        trained.after_backward()

    def returned(self, result: object) -> bool:
        """Return whether the result of the optimizer's step is the loss of the last call."""
        if self._loss is None or not isinstance(result, Tensor | float | int):
            return False
        expected = float(self._loss)
        return float(result) == expected or math.isnan(expected)
