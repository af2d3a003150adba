"""A value that is not finite in one rank's batch (`TrainingCase.poison`)."""

from ddp_invariants.cases.case import TrainingCase
from ddp_invariants.cases.numbers import FloatArray
from ddp_invariants.ranks.training.effect import Effect, effect


@effect
class Poisoned(Effect):
    """A value that is not finite in one rank's batch."""

    @classmethod
    def concerns(cls, case: TrainingCase) -> bool:
        """Return whether a batch contains such a value."""
        return case.poison is not None

    def on_samples(self, inputs_BD: FloatArray, step: int) -> None:
        """Put the value into the first input."""
        poison = self.case.poison
        assert poison is not None
        if (poison.rank, poison.step) == (self.setup.rank, step):
            inputs_BD[0, 0] = float(poison.value)
