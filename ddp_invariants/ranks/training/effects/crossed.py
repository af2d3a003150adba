"""Branches that one rank computes in the other order (`TrainingCase.crossed`)."""

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica


@effect(lambda case: case.crossed is not None)
class Crossed(Effect):
    """Branches that one rank computes in the other order."""

    def on_replica(self, replica: Replica) -> None:
        """Cross the branches if this is the rank."""
        if self.case.crossed == self.setup.rank:
            replica.cross()

    def on_twin(self, twin: Replica) -> None:
        """Cross the twin's branches likewise."""
        self.on_replica(twin)
