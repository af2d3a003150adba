"""Groups of parameters whose options in the optimizer differ (`situations.group_options`)."""

from typing import TYPE_CHECKING, Any

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.trained import Trained
from ddp_invariants.situations import group_options

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper

_GROUPS = 2
"""The number of groups of a model of several parameters."""


@effect(lambda case: case.get(group_options.GroupOptions) is not None)
class GroupOptions(Effect):
    """An optimizer over two groups; `Setup.context` gives it their options."""

    def begin(self, stepper: "Stepper") -> None:
        """Check that the optimizer was made of the groups.

        Raises:
            NotImplementedError: It was made otherwise.
        """
        del stepper
        groups = self.setup.context.groups
        assert groups is not None
        if not groups.made:
            raise NotImplementedError("the optimizer is made without groups of parameters")

    def before_batch(self, stepper: "Stepper", indices: Any) -> None:
        """Set the second group's learning rate of the step."""
        del indices
        self._set_rate(stepper.trained, stepper.position.step)

    def before_plain_step(self, step: int, plain: Trained) -> None:
        """Set the rate of the step of training without a wrapper."""
        self._set_rate(plain, step)

    def _set_rate(self, trained: Trained, step: int) -> None:
        found = self.case.get(group_options.GroupOptions)
        assert found is not None
        if not step or not found.log2_later or len([*trained.replica.parameters()]) == 1:
            return
        groups = trained.optimizer.param_groups
        if len(groups) != _GROUPS:
            raise NotImplementedError(f"the optimizer shows {len(groups)} groups of parameters")
        groups[-1]["lr"] = found.of_second(self.case.at(step).optimizer, step).lr
