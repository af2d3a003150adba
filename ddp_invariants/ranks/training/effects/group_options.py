"""Groups of parameters whose options in the optimizer differ (`situations.group_options`)."""

from typing import TYPE_CHECKING

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.situations import group_options

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


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
