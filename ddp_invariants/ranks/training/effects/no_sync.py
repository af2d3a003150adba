"""Uses of `no_sync` besides the plain one (`TrainingCase.no_sync`)."""

from contextlib import suppress
from typing import TYPE_CHECKING

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import UserError, UserInterrupt

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.no_sync == "nested")
class NestedNoSync(Effect):
    """A second `no_sync`, entered and left inside the first one before its forward."""

    def inside_no_sync(self, stepper: "Stepper") -> None:
        """Enter and leave the second one."""
        trained = stepper.trained
        with trained.drive.accumulate(trained.wrapped):
            pass


@effect(lambda case: case.no_sync in ("error", "interrupt"))
class FailedNoSync(Effect):
    """A `no_sync` that an exception of the user's own leaves."""

    def before_synchronised_pass(self, stepper: "Stepper") -> None:
        """Raise the exception inside a `no_sync`, and catch it outside."""
        trained = stepper.trained
        raised = UserInterrupt if self.case.no_sync == "interrupt" else UserError
        with suppress(raised), trained.drive.accumulate(trained.wrapped):
            raise raised
