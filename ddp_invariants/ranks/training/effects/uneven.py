"""Ranks that run out of batches before the other ranks (`TrainingCase.exhausted`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ddp_invariants.ranks.training.effect import Effect, effect

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: bool(case.exhausted))
class UnevenInputs(Effect):
    """Ranks that run out of batches before the other ranks."""

    @contextmanager
    def around_training(self, stepper: "Stepper") -> Iterator[None]:
        """Train in the implementation's own `join`, and note the parameters after it."""
        trained = stepper.trained
        with trained.drive.join(trained.wrapped, trained.optimizer):
            yield
            stepper.position.phase = "join"
        stepper.observer.joined()
