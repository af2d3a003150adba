"""An optimizer that a program makes before it wraps the module (`situations.optimizer_first`)."""

from typing import TYPE_CHECKING

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.situations import optimizer_first

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(optimizer_first.OptimizerFirst) is not None)
class OptimizerFirst(Effect):
    """The case's optimizer, made before the module is wrapped."""

    def before_wrapping(self, stepper: "Stepper") -> None:
        """Make the optimizer."""
        stepper.trained.drive.make_optimizer_first()
