"""A learning-rate schedule (`situations.schedule`)."""

from typing import TYPE_CHECKING, Any

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.trained import Trained
from ddp_invariants.situations import schedule

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(schedule.RateSchedule) is not None)
class RateSchedule(Effect):
    """A learning rate that a schedule sets before every step."""

    def begin(self, stepper: "Stepper") -> None:
        """Check that the optimizer keeps its learning rate under the usual name."""
        stepper.trained.require_option("lr")

    def before_batch(self, stepper: "Stepper", _indices: Any) -> None:
        """Set the rate of the step, after all that happens between steps."""
        self._set_rate(stepper.trained, stepper.position.step)

    def before_plain_step(self, step: int, plain: Trained) -> None:
        """Set the rate of the step of training without a wrapper."""
        self._set_rate(plain, step)

    def _set_rate(self, trained: Trained, step: int) -> None:
        trained.set_rates(lambda _: self.case.at(step).optimizer.lr)
