"""A state that other ranks saved (`TrainingCase.saved_by`), loaded before the first step."""

from copy import deepcopy
from typing import TYPE_CHECKING

from ddp_invariants.ranks.training.effect import Effect, effect

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.saved_by is not None)
class Resized(Effect):
    """A state that other ranks saved, loaded before the first step."""

    def begin(self, stepper: "Stepper") -> None:
        """Load the states, and note the tensors that were saved and those that were loaded."""
        saved, trained = stepper.setup.saved, stepper.trained
        assert saved is not None
        stepper.position.phase = "loading what others saved"
        stepper.record.facts.setdefault("saved", []).append(sorted(saved.states[0]))
        trained.stateful.load_state_dict(saved.states[0])
        trained.optimizer.load_state_dict(deepcopy(saved.states[1]))
        for moment, tensors in saved.own.items():
            stepper.record.tensors(moment, 0, tensors)
        stepper.observer.restored()
