"""Wrappers that are built on torch's DDP: as a base, as a part, by a function, and one with a fault."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Subclass(DistributedDataParallel):
    """An empty subclass."""


class Holder(nn.Module):
    """A module that contains torch's DDP and takes an argument that torch's DDP does not take."""

    def __init__(self, module: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.inner, self.scale = DistributedDataParallel(module), scale

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the inner DDP."""
        return self.inner(*args, **kwargs)

    def no_sync(self) -> Any:
        """Return the inner DDP's context."""
        return self.inner.no_sync()


def made(module: nn.Module) -> DistributedDataParallel:
    """Return torch's DDP with buckets of one parameter or few."""
    return DistributedDataParallel(module, bucket_cap_mb=1)


class TriplesOnceCast(DistributedDataParallel):
    """A subclass with a fault of its own where torch deviates: a cast triples later gradients."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module, and triple the gradients of parameters that have moved in memory."""
        for name, parameter in self.module.named_parameters():
            place = parameter.data_ptr()
            if self.__dict__.setdefault("places", {}).setdefault(name, place) != place:
                self.__dict__["places"][name] = place
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(_triple)
        return super().forward(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch's


def _triple(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(3)
