"""Gradient accumulation: who decides which micro-step communicates, and what is sent at the end.

`EachLayer` has the shape of trainers that wrap a model's parts one by one. The other faults change
the reference.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._hooks import weakly
from ddp_invariants.faults._start import broadcast
from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class _Switched:
    """A switch for one part of a model: while it is on, a hook averages each gradient.

    The hooks end with the switch, and so with the wrapper that holds it.
    """

    def __init__(self, part: nn.Module) -> None:
        self.on = True
        for parameter in part.parameters(recurse=False):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(weakly(self._average))

    def _average(self, parameter: Tensor) -> None:
        if self.on:
            assert parameter.grad is not None
            total = parameter.grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            parameter.grad.copy_(total / dist.get_world_size())


class EachLayer(nn.Module):
    """Right: each layer is wrapped by itself, and so is the module or a list if it holds parameters;
    no_sync switches all of them off.
    """

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused", "crossed", "unfreeze", "in_parts", "few", "assign")
    }

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        broadcast([*module.parameters(), *module.buffers()])
        self.parts = [
            _Switched(part) if self._trains(part) else None
            for part in module.modules()
            if self._trains(part) or not (part is module or isinstance(part, nn.ModuleList))
        ]

    def _trains(self, part: nn.Module) -> bool:
        return any(parameter.requires_grad for parameter in part.parameters(recurse=False))

    def forward(self, *inputs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs)

    def _switchable(self) -> list[_Switched]:
        return [part for part in self.parts if part is not None]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate locally."""
        switched = [part for part in self._switchable() if part.on]
        for part in switched:
            part.on = False
        try:
            yield
        finally:
            for part in switched:
                part.on = True


class StopsAtALayerWithout(EachLayer):
    """no_sync switches layers off only up to the first layer that has nothing to train
    (speechbrain/speechbrain#2010).

    GRAD-8: a backward inside no_sync communicates.
    """

    def _switchable(self) -> list[_Switched]:
        end = self.parts.index(None) if None in self.parts else len(self.parts)
        return [part for part in self.parts[:end] if part is not None]


class ReducesTheFirst(_Reference):
    """Off by one: the first micro-step of a step is reduced instead of the last
    (modelscope/FunASR#3472).

    GRAD-8: a backward inside no_sync communicates.
    """

    _fresh = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        depth = self._no_sync_depth
        if torch.is_grad_enabled():
            self._no_sync_depth = 0 if self._fresh else 1
            self._fresh = depth == 0
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._no_sync_depth = depth


class SendsWhatTheLastUsed(_Reference):
    """A gradient that only an earlier micro-step added to is not sent and stays local
    (pytorch#69031).

    GRAD-8; or GRAD-9: left out (counted as zero).
    """

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._reducing:
            self._used: set[nn.Parameter] = set()
        super()._backward_begins(gradient)

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        if self._reducing:
            self._used.add(parameter)
        super()._gradient_ready(parameter)

    def _packed(self, bucket: Bucket) -> Tensor:
        kept = {
            parameter: parameter.grad
            for parameter in bucket.parameters
            if parameter not in self._used
        }
        for parameter in kept:
            parameter.grad = None
        try:
            return super()._packed(bucket)
        finally:
            for parameter, gradient in kept.items():
                parameter.grad = gradient
