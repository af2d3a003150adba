"""Gradients that a program clears through the wrapper (`situations.clearing`)."""

from typing import TYPE_CHECKING

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.situations import clearing

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(clearing.ClearedByModule) is not None)
class ClearedByModule(Effect):
    """The wrapper's `zero_grad` in place of the optimizer's."""

    def begin(self, stepper: "Stepper") -> None:
        """Have the model under test cleared so."""
        stepper.trained.cleared_by_module = True
