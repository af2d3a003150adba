"""Injected failures (`TrainingCase.injected_failure`): a rank's death, and an exception."""

import os
import signal
from typing import TYPE_CHECKING, Any

from ddp_invariants.ranks.training.effect import Effect, effect

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.kills)
class Death(Effect):
    """The death of one rank's process as a step begins."""

    def before_batch(self, stepper: "Stepper", _indices: Any) -> None:
        """End this process if it is the rank's, at the step."""
        plan = self.case.injected_failure
        assert plan is not None
        if (plan.step, plan.rank) == (stepper.position.step, self.setup.rank):
            os.kill(os.getpid(), signal.SIGKILL)


@effect(lambda case: case.injected_failure is not None and not case.kills)
class CaughtException(Effect):
    """An exception of the user's own in a forward or backward, which the user catches."""

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Attempt the step, catch the exception and clear gradients.

        An implementation that does whole steps has no pass in which to raise.
        """
        plan, trained = self.case.injected_failure, stepper.trained
        assert plan is not None
        if plan.step != stepper.position.step or trained.drive.whole_step:
            return
        surfaced = ""
        trained.drive.before_batch(trained.wrapped, trained.optimizer)
        trained.zero_grad()
        batch = stepper.program.batch(indices, plan.step)
        trained.replica.failing = plan.kind.removesuffix(" error")
        try:
            outputs = stepper.program.forward(trained.forward, batch[0])
            trained.backward(stepper.program.loss(outputs, batch)[1])
        except Exception as error:  # noqa: BLE001 - an implementation may pass it on as another
            surfaced = type(error).__name__
        finally:
            trained.replica.failing = ""
        stepper.record.facts["surfaced"] = surfaced
        trained.zero_grad()
