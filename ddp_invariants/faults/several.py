"""Wrappers in a program with other wrappers, or in a process that has trained before."""

import weakref
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._start import broadcast
from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference

_flat: dict[tuple[int, torch.dtype], Tensor] = {}
_reducing: dict[int, nn.Module] = {}


class _PerParameter(nn.Module):
    """A wrapper whose hooks average each gradient as soon as it is computed."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        broadcast((*module.parameters(), *module.buffers()), process_group)
        self.handles = [
            parameter.register_post_accumulate_grad_hook(self._hook())
            for parameter in module.parameters()
            if parameter.requires_grad
        ]

    def _hook(self) -> Any:
        return self._average

    def _average(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        mean = parameter.grad.to_dense().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(mean, group=self.group)
        parameter.grad = mean.div_(dist.get_world_size(self.group)).view_as(parameter)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def _average_of(wrapper: "weakref.ref[_PerParameter]", parameter: Tensor) -> None:
    alive = wrapper()
    if alive is not None:
        alive._average(parameter)


class HooksDieWithTheWrapper(_PerParameter):
    """Right: the hook of a parameter does nothing once its wrapper is gone."""

    def _hook(self) -> Any:
        return partial(_average_of, weakref.ref(self))


class HooksOutliveTheWrapper(_PerParameter):
    """The hooks of a deleted wrapper stay on the parameters, which are then reduced twice
    (no public incident found).

    LIVE-6.
    """


class SharesFlatTensors(_Reference):
    """Flat tensors are kept by dtype for the whole process, and two wrappers pack into the same one
    (no public incident found).

    LIVE-6.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        packed = super()._packed(bucket)
        if self._buckets[0] is not bucket:
            return packed
        key = (dist.get_rank(), packed.dtype)
        if key not in _flat or _flat[key].numel() < packed.numel():
            _flat[key] = packed.new_empty(max(1024, packed.numel()))
        return _flat[key][: packed.numel()].copy_(packed)


class OneReductionAtATime(_Reference):
    """A flag of the whole process says that a backward is being reduced, so a second wrapper in the
    same backward reduces nothing (no public incident found).

    LIVE-6: never reduced.
    """

    def _backward_begins(self, gradient: Tensor) -> None:
        if _reducing.setdefault(dist.get_rank(), self) is self:
            super()._backward_begins(gradient)

    def _finish(self) -> None:
        _reducing.pop(dist.get_rank(), None)
        super()._finish()


class PlanOfTheLastWrapper(_Reference):
    """The list of buckets belongs to the class, and a second wrapper replaces the first one's
    (no public incident found).

    LIVE-6: never reduced.
    """

    _plans: dict[int, tuple[Any, list[Bucket]]] = {}  # noqa: RUF012 - this is the fault

    def _plan(self) -> None:
        super()._plan()
        self._plans[dist.get_rank()] = (self.group, self._buckets)

    def _backward_begins(self, gradient: Tensor) -> None:
        group, buckets = self._plans.get(dist.get_rank(), (self.group, self._buckets))
        if group is self.group:
            self._buckets = buckets
        super()._backward_begins(gradient)
