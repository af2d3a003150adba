"""A right wrapper that puts its parameters into other memory during training."""

from typing import Any

import torch

from ddp_invariants.reference.ddp import DistributedDataParallel


class MovesItsParameters(DistributedDataParallel):
    """Each forward but the first starts from parts of flat tensors.

    torch's `PeriodicModelAverager` leaves parameters so after the first step.
    """

    _moves = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Move the parameters, and run the module."""
        for dtype in {parameter.dtype for parameter in self.parameters()}:
            moved = [parameter for parameter in self.parameters() if parameter.dtype == dtype]
            flat = torch.cat([parameter.detach().reshape(-1) for parameter in moved])
            parts = flat.split([parameter.numel() for parameter in moved])
            for parameter, part in zip(moved, parts, strict=True):
                if self._moves:
                    parameter.data = part.view(parameter.shape)
        self._moves = True
        return super().forward(*args, **kwargs)
