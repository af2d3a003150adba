"""A loss that the program multiplies by a tiny number (`situations.faint_loss`)."""

from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.situations import faint_loss


@effect(lambda case: case.get(faint_loss.FaintLoss) is not None)
class FaintLoss(Effect):
    """A loss that the program multiplies by a tiny number."""

    def on_share(self, share: Tensor) -> Tensor:
        """Multiply the loss that backward starts from."""
        faint = self.case.get(faint_loss.FaintLoss)
        assert faint is not None
        return share * 2.0**faint.log2
