"""Gradients clipped by their norm (`TrainingCase.clip`)."""

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.trained import Trained


@effect(lambda case: case.clip is not None)
class Clipping(Effect):
    """Gradients clipped by their norm."""

    def before_update(self, trained: Trained) -> None:
        """Scale all gradients together down to the largest norm."""
        assert self.case.clip is not None
        trained.clip(self.case.clip)
