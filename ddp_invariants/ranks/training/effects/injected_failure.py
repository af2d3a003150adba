"""Injected failures (`TrainingCase.injected_failure`): a rank's death, and an exception."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ddp_invariants.cases.program import InjectedFailure
from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica, UserError, UserInterrupt, fail

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
        """Attempt the step with another batch, catch the exception and clear gradients.

        An implementation that does whole steps has no pass in which to raise. On the batch of the
        step, results that the attempt leaves behind would pass for those of the step.
        """
        plan, trained = self.case.injected_failure, stepper.trained
        assert plan is not None
        if plan.step != stepper.position.step or trained.drive.whole_step:
            return
        surfaced = ""
        trained.drive.before_batch(trained.wrapped, trained.optimizer)
        trained.zero_grad()
        inputs, targets, tags = stepper.program.batch(indices, plan.step)
        batch = inputs, targets + 1, tags
        with self._raising(trained.replica, plan):
            try:
                outputs = stepper.program.forward(trained.forward, inputs)
                trained.backward(stepper.program.loss(outputs, batch, trained.replica)[1])
            except (Exception, UserInterrupt) as error:  # noqa: BLE001 - an implementation may pass on another
                surfaced = type(error).__name__
                trained.recover()
        if surfaced or self._raised:
            stepper.record.facts["surfaced"] = surfaced
        trained.zero_grad()

    @contextmanager
    def _raising(self, replica: Replica, plan: InjectedFailure) -> Iterator[None]:
        """Have a pass of a replica raise an exception of the user's own, as a failure says."""
        self._raised = plan.parameter is None
        raised = UserInterrupt if plan.interrupts else UserError
        if plan.parameter is None:
            replica.raised = raised
            replica.failing = plan.kind.removesuffix(" error")
            yield
            replica.failing = ""
            return
        trained = [parameter for parameter in replica.parameters() if parameter.requires_grad]
        handle = trained[plan.parameter % len(trained)].register_hook(partial(self._fail, raised))
        yield
        handle.remove()

    def _fail(self, raised: type[BaseException], gradient: Tensor) -> None:
        """Raise from a hook on a gradient, which some implementations never compute."""
        self._raised = True
        fail(raised, gradient)
