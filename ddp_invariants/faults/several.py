"""Wrappers in a program with other wrappers, or in a process that has trained before."""

import os
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._hooks import weakly
from ddp_invariants.faults._start import broadcast
from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference

_flat: dict[tuple[int, torch.dtype], Tensor] = {}
_reducing: dict[int, nn.Module] = {}
_started: set[int] = set()
_plans: dict[tuple[Any, ...], Any] = {}


class _PerParameter(nn.Module):
    """A wrapper whose hooks average each gradient as soon as it is computed."""

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused", "crossed", "unfreeze", "assign", "in_parts")
    }

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


class HooksDieWithTheWrapper(_PerParameter):
    """Right: the hook of a parameter does nothing once its wrapper is gone."""

    def _hook(self) -> Any:
        return weakly(self._average)


class HooksOutliveTheWrapper(_PerParameter):
    """The hooks of a deleted wrapper stay on the parameters, which are then reduced twice
    (no public incident found).

    LIVE-6: keep the deleted wrapper alive.
    """


class UnhooksAllAtItsEnd(HooksDieWithTheWrapper):
    """A wrapper that is deleted removes all hooks of its parameters, also those of the wrapper that
    has taken its name (no public incident found).

    LIVE-6: never reduced.
    """

    def __del__(self) -> None:
        """Remove the hooks."""
        for parameter in self.module.parameters():
            hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
            if hooks:
                hooks.clear()


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

    _plans: ClassVar[dict[int, tuple[Any, list[Bucket]]]] = {}

    def _plan(self) -> None:
        super()._plan()
        self._plans[dist.get_rank()] = (self.group, self._buckets)

    def _backward_begins(self, gradient: Tensor) -> None:
        group, buckets = self._plans.get(dist.get_rank(), (self.group, self._buckets))
        if group is self.group:
            self._buckets = buckets
        super()._backward_begins(gradient)


class BroadcastsOnce(_Reference):
    """A flag of the whole process says that the start is done, so a second model starts as each
    rank built it (no public incident found).

    LIVE-8.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        if self._buckets or dist.get_rank() not in _started:
            super()._broadcast_state(tensors)
        if not self._buckets:
            _started.add(dist.get_rank())


def _shapes(wrapper: _Reference) -> tuple[Any, ...]:
    """Return a key of the wrapper's trained parameters by their shapes."""
    shapes = [(tuple(p.shape), p.dtype) for p in wrapper._trainable()]
    return (dist.get_rank(), wrapper.bucket_cap, *shapes)


class PlansAreKeptByShapes(_Reference):
    """Plans are kept by the shapes of parameters, and with them the parameters of an earlier model
    (no public incident found).

    LIVE-8.
    """

    def _plan(self) -> None:
        super()._plan()
        self._buckets = _plans.setdefault(("of", *_shapes(self)), self._buckets)


class PlansHoldPositions(_Reference):
    """Right: plans are kept by the shapes of parameters, and hold their positions."""

    def _plan(self) -> None:
        super()._plan()
        place = {id(parameter): number for number, parameter in enumerate(self._trainable())}
        positions = [[place[id(p)] for p in bucket.parameters] for bucket in self._buckets]
        trained = self._trainable()
        for bucket, kept in zip(
            self._buckets, _plans.setdefault(("at", *_shapes(self)), positions), strict=True
        ):
            bucket.parameters = [trained[number] for number in kept]


class WorldOfTheEnvironment(_Reference):
    """The world size is the environment's, which may be an outer launcher's
    (no public incident found).

    LIVE-7: summed, never divided.
    """

    declares: ClassVar[dict[str, Any]] = {"unsupported": ("subgroup",)}

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(module, None, bucket_cap_mb)
        self.world_size = int(os.environ.get("WORLD_SIZE", self.world_size))


class WorldOfTheScheduler(WorldOfTheEnvironment):
    """The world size is the number of tasks that a job scheduler started, which may be one that
    then starts all ranks (no public incident found).

    LIVE-7: summed, never divided.
    """

    def __init__(self, module: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        _Reference.__init__(self, module, None, bucket_cap_mb)
        self.world_size = int(os.environ.get("SLURM_NTASKS", self.world_size))


class HooksWithGradientsOnly(_Reference):
    """Nothing is hooked where gradients are off while the model is wrapped
    (no public incident found).

    LIVE-7: never reduced.
    """

    _wraps_without = False

    def _plan(self) -> None:
        self._wraps_without |= not torch.is_grad_enabled() and not self._buckets
        super()._plan()

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._wraps_without:
            super()._backward_begins(gradient)


class OrderedSumsAreNoMeans(_Reference):
    """With deterministic algorithms another reduction is used, and its sum is not divided
    (no public incident found).

    LIVE-7: summed, never divided.
    """

    def _write_back(self, bucket: Bucket) -> None:
        divisor = self.world_size
        if torch.are_deterministic_algorithms_enabled():
            self.world_size = 1
        super()._write_back(bucket)
        self.world_size = divisor


class FlatOfTheDefaultDtype(_Reference):
    """Float32 gradients travel in a tensor that is made without a dtype, and so has the default
    one (no public incident found).

    LIVE-7: rounded to bfloat16.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        packed = super()._packed(bucket)
        if packed.dtype != torch.float32:
            return packed
        return torch.empty(packed.shape, device=packed.device).copy_(packed)


class PausedTogether(_Reference):
    """The depth of no_sync is counted for all wrappers of a process together (no public incident
    found).

    LIVE-6: own local gradient: never reduced.
    """

    depth: ClassVar[list[int]] = [0]

    @property
    def _no_sync_depth(self) -> int:
        return self.depth[0]

    @_no_sync_depth.setter
    def _no_sync_depth(self, value: int) -> None:
        self.depth[0] = value


class SizeOfTheFirstGroup(_Reference):
    """The world size is that of the first wrapper's group in the process (a cached
    `get_world_size()`).

    LIVE-6.
    """

    sizes: ClassVar[list[int]] = []

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(module, *args, **kwargs)
        self.sizes.append(self.world_size)
        self.world_size = self.sizes[0]
