"""The bucketed reference in programs that act between a forward and its backward."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class ArmedByTraining(_Reference):
    """Right: a forward arms the next backward, and a forward without gradients changes nothing."""

    _armed = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self._armed = self._arms()
        return result

    def _arms(self) -> bool:
        return self._armed or (torch.is_grad_enabled() and self._no_sync_depth == 0)

    def _backward_begins(self, gradient: Tensor) -> None:
        if self._armed:
            super()._backward_begins(gradient)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate locally."""
        self._armed = False
        with super().no_sync():
            yield


class DisarmedByEvaluation(ArmedByTraining):
    """A forward without gradients disarms the backward of the forward before it (no public incident
    found).

    GRAD-1: own local gradient: never reduced.
    """

    def _arms(self) -> bool:
        return torch.is_grad_enabled() and self._no_sync_depth == 0


class LinksAtForward(_Reference):
    """The gradients that exist at the forward are sent and get the results, although the program has
    cleared them since (no public incident found).

    GRAD-1: own local gradient: never reduced.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._linked: dict[nn.Parameter, Tensor] = {}
        super().__init__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._linked = {p: p.grad for p in self._trainable() if p.grad is not None}
        return super().forward(*args, **kwargs)

    def _packed(self, bucket: Bucket) -> Tensor:
        with self._of_the_forward(bucket):
            return super()._packed(bucket)

    def _write_back(self, bucket: Bucket) -> None:
        with self._of_the_forward(bucket):
            super()._write_back(bucket)

    @contextmanager
    def _of_the_forward(self, bucket: Bucket) -> Iterator[None]:
        own = [p.grad for p in bucket.parameters]
        for parameter in bucket.parameters:
            parameter.grad = self._linked.get(parameter, parameter.grad)
        try:
            yield
        finally:
            for parameter, gradient in zip(bucket.parameters, own, strict=True):
                if parameter in self._linked:
                    parameter.grad = gradient
