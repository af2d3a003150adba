"""Layers that forwards pass by (`TrainingCase.unused`)."""

from functools import cached_property

from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.situations.unused import unreached


@effect(lambda case: bool(case.unused))
class UnusedLayers(Effect):
    """Layers that some forwards pass by."""

    def before_pass(self, replica: Replica, step: int, micro_step: int) -> None:
        """Have the replica pass this micro-step's unused layers by."""
        replica.passed_by = self.case.passed_by(self.setup.rank, step, micro_step)

    def on_inputs(self, inputs: Tensor) -> None:
        """Make autograd record operations on the inputs where a loss reaches no parameter."""
        if self._unreached:
            inputs.requires_grad_()

    @cached_property
    def _unreached(self) -> bool:
        return unreached(self.case)
