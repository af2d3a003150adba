"""Actions between a forward and its backward (`situations.between_passes`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.effects.between_steps import run_forward
from ddp_invariants.situations import between_passes

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(between_passes.BetweenPasses) is not None)
class BetweenPasses(Effect):
    """The action before the first backward of each step."""

    stepper: "Stepper | None" = None
    waits: bool = False
    indices: Any = None

    def begin(self, stepper: "Stepper") -> None:
        """Keep the run, whose wrapper other situations may replace."""
        self.stepper = stepper

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Wait for the first backward of a step."""
        del stepper
        self.waits, self.indices = True, indices

    @property
    def clears(self) -> bool:
        """True if gradients are cleared here."""
        return self._plan.action == "clear"

    @property
    def _plan(self) -> between_passes.BetweenPasses:
        plan = self.case.get(between_passes.BetweenPasses)
        assert plan is not None
        return plan

    def run_backward(self, backward: Callable[[Tensor], None], share: Tensor) -> None:
        """Act, then run the backward."""
        if self.waits and self.stepper is not None:
            self.waits = False
            self._act(self.stepper)
        backward(share)

    def _act(self, stepper: "Stepper") -> None:
        if self.clears:
            stepper.trained.clear_gradients(self.case.zero_grad, stepper.position.step)
        else:
            run_forward(stepper, "evaluation", self.indices)
