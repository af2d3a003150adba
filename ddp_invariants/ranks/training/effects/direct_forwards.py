"""Layers whose `forward` the model runs without calling the layer (`situations.direct_forwards`)."""

from typing import TYPE_CHECKING

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.situations import direct_forwards

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.trained import Trained


@effect(lambda case: case.get(direct_forwards.DirectForwards) is not None)
class DirectForwards(Effect):
    """Replicas that run their layers without calling them."""

    def on_replica(self, replica: Replica) -> None:
        """Have the replica run its layers directly."""
        replica.calls_layers = False

    def on_twin(self, twin: Replica) -> None:
        """Have the twin run its layers directly."""
        twin.calls_layers = False

    def before_plain_step(self, step: int, plain: "Trained") -> None:
        """Have the module that is trained without a wrapper do so."""
        del step
        plain.replica.calls_layers = False
