"""Training in evaluation mode (`situations.evaluation_mode`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.situations import evaluation_mode

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(evaluation_mode.EvaluationMode) is not None)
class EvaluationMode(Effect):
    """The mode of the wrapper and of its replica in the passes of a step.

    The twin's mode stays as it is, because no layer of the case depends on it.
    """

    stepper: "Stepper | None" = None

    def begin(self, stepper: "Stepper") -> None:
        """Keep the run, whose wrapper other situations may replace."""
        self.stepper = stepper

    def before_pass(self, replica: Replica, step: int, micro_step: int) -> None:
        """Switch the mode before a forward of the model under test."""
        del step, micro_step
        if self.stepper is not None and replica is self.stepper.trained.replica:
            self._switch("forward")

    def run_backward(self, backward: Callable[[Tensor], None], share: Tensor) -> None:
        """Switch the mode before a backward."""
        self._switch("backward")
        backward(share)

    def _switch(self, passing: evaluation_mode.EvaluatedPasses) -> None:
        """Switch wrapper and replica: some wrappers do not pass `eval` on to the module."""
        plan = self.case.get(evaluation_mode.EvaluationMode)
        assert self.stepper is not None
        assert plan is not None
        if self.stepper.position.step < plan.first:
            return
        trained = self.stepper.trained
        for module in (trained.wrapped, trained.replica):
            if isinstance(module, nn.Module):
                module.train(plan.passes not in ("both", passing))
