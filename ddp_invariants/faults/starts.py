"""The bucketed reference at the start, when every rank must get the same state."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

_SUM = dist.all_reduce
"""The unpatched all-reduce: a fault may replace `dist.all_reduce` for one call."""


class CountsFromEndToEnd(Reference):
    """The group's size is the distance of its last rank from its first, as if the group's ranks
    followed one another (no public incident found).

    GRAD-2: one rank too many.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
        self.world_size = ranks[-1] - ranks[0] + 1


class NoBroadcast(Reference):
    """Nothing is broadcast at construction; the wrapper relies on equal seeds (picotron).

    INIT-1: never broadcast.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        del tensors


class TrainableOnlyBroadcast(Reference):
    """Parameters that require no gradient are not broadcast (planted by a course's own tests).

    INIT-1: never broadcast.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        super()._broadcast_state(
            [t for t in tensors if t.requires_grad or not isinstance(t, nn.Parameter)]
        )


class NoBufferBroadcast(Reference):
    """Buffers are not broadcast at construction (pytorch#111138). INIT-2: never broadcast."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        super()._broadcast_state([t for t in tensors if isinstance(t, nn.Parameter)])


class TrustsASum(Reference):
    """Nothing is broadcast if the sums of all parameters agree on all ranks, as a cheap checksum
    (no public incident found).

    INIT-1: never broadcast.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        total = sum(tensor.detach().abs().double().sum().item() for tensor in tensors)
        sums = torch.tensor([total, -total], dtype=torch.float64)
        dist.all_reduce(sums, dist.ReduceOp.MAX, group=self.group)
        if sums.sum() != 0:
            super()._broadcast_state(tensors)


class CopiesWhatDiffers(Reference):
    """Right: a rank keeps its own elements where they equal the first rank's, and -0 equals 0."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        own = [tensor.detach().clone() for tensor in tensors]
        super()._broadcast_state(tensors)
        with torch.no_grad():
            for tensor, before in zip(tensors, own, strict=True):
                tensor.copy_(torch.where(tensor == before, before, tensor))


class StridedBroadcast(Reference):
    """A strided parameter is broadcast without a contiguous copy, so gloo writes the wrong elements
    (pytorch#192920).

    INIT-1: ignores its strides.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), group_src=0, group=self.group)


class SourceIsGlobalRankZero(Reference):
    """The broadcast's source is rank 0 of the world, which the group need not contain
    (pytorch#53793).

    INIT-1: never broadcast.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        with suppress(ValueError):  # torch raises this if the group lacks rank 0 of the world.
            for tensor in tensors:
                flat = tensor.detach().clone(memory_format=torch.contiguous_format)
                dist.broadcast(flat, src=0, group=self.group)
                tensor.detach().copy_(flat)


class SourceIsRankOne(Reference):
    """The broadcast's source is the group's rank 1 (no public incident found).

    INIT-1: the broadcast's source is rank 1.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            flat = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(
                flat, group_src=1 if dist.get_world_size(self.group) > 1 else 0, group=self.group
            )
            tensor.detach().copy_(flat)


class AveragesAtTheStart(Reference):
    """Parameters are averaged at construction instead of broadcast (no public incident found).

    INIT-1: averaged instead of broadcast.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.is_floating_point():
                flat = tensor.detach().clone(memory_format=torch.contiguous_format)
                dist.all_reduce(flat, group=self.group)
                tensor.detach().copy_(flat / self.world_size)
            else:
                super()._broadcast_state([tensor])


class SumsWhatIsMasked(Reference):
    """The broadcast is a sum, for which all other ranks multiply their values by zero; NaN times zero
    is NaN (no public incident found).

    INIT-1.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        with torch.no_grad():
            for tensor in tensors:
                flat = tensor.detach().clone(memory_format=torch.contiguous_format)
                flat = flat.to(torch.uint8) if flat.dtype == torch.bool else flat
                flat.mul_(int(dist.get_rank(self.group) == 0))
                _SUM(flat, group=self.group)
                tensor.copy_(flat)


class StartsWithTheFirstForward(Reference):
    """The first forward sends the start if autograd records it; after an evaluation nothing is sent
    (no public incident found).

    INIT-1: never broadcast; or INIT-2: never broadcast.
    """

    declares: ClassVar[dict[str, str]] = {"init": "first_forward"}

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        self._started = False
        super().__init__(module, process_group)
        self._started = True
        self._begun = False

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        if self._started:
            super()._broadcast_state(tensors)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._begun and torch.is_grad_enabled():
            self._broadcast_state([*self.module.parameters(), *self.module.buffers()])
        self._begun = True
        return super().forward(*args, **kwargs)
