"""Wrappers whose signatures promise what they no longer do."""

from typing import Any, ClassVar

import torch.distributed as dist
from torch import nn

from ddp_invariants.reference.ddp import DistributedDataParallel


class EqualisesInEvaluationAlone(DistributedDataParallel):
    """The reference, but it broadcasts buffers in evaluation alone, against its signature."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; in training no buffer is broadcast first."""
        self.broadcast_buffers = not self.training
        return super().forward(*args, **kwargs)


class IgnoresItsCapacity(DistributedDataParallel):
    """The reference, but each of its buckets takes 25 MiB, whatever capacity is given."""

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        del bucket_cap_mb
        super().__init__(module, process_group)


class SendsAtTheEnd(DistributedDataParallel):
    """The reference, but its hooks send nothing before the backward ends."""

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        """Do nothing."""


class DeclaresThat(SendsAtTheEnd):
    """The same, as it declares."""

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("overlap",)}
