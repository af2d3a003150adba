"""Gradients clipped by their norm (`TrainingCase.clip`)."""

from ddp_invariants.ranks.training.situation import Situation, situation
from ddp_invariants.ranks.training.trained import Trained


@situation(lambda case: case.clip is not None)
class Clipping(Situation):
    """Gradients clipped by their norm."""

    def before_update(self, trained: Trained) -> None:
        """Scale all gradients together down to the largest norm."""
        assert self.case.clip is not None
        trained.clip(self.case.clip)
