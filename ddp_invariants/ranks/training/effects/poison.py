"""A value that is not finite in one rank's batch (`TrainingCase.poison`)."""

from ddp_invariants.cases.numbers import FloatArray
from ddp_invariants.ranks.training.effect import Effect, effect


@effect(lambda case: case.poison is not None)
class Poisoned(Effect):
    """A value that is not finite in one rank's batch."""

    def on_samples(self, inputs_BD: FloatArray, step: int) -> None:
        """Put the value into the first input."""
        poison = self.case.poison
        assert poison is not None
        if (poison.rank, poison.step) == (self.setup.rank, step):
            inputs_BD[0, 0] = float(poison.value)
