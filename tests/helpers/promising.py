"""A wrapper whose signature promises what it no longer does."""

from typing import Any

from ddp_invariants.reference.ddp import DistributedDataParallel


class EqualisesInEvaluationAlone(DistributedDataParallel):
    """The reference, but it broadcasts buffers in evaluation alone, against its signature."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; in training no buffer is broadcast first."""
        self.broadcast_buffers = not self.training
        return super().forward(*args, **kwargs)
