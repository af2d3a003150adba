"""Gradients clipped by their norm (`TrainingCase.clip`)."""

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.trained import Trained


@effect
class Clipping(Effect):
    """Gradients clipped by their norm."""

    @classmethod
    def concerns(cls, case: TrainingCase) -> bool:
        """Return whether gradients are clipped."""
        return case.clip is not None

    def before_update(self, trained: Trained) -> None:
        """Scale all gradients together down to the largest norm."""
        assert self.case.clip is not None
        trained.clip(self.case.clip)
