"""Running statistics: buffers that each rank's batches move apart, made one again when a forward starts."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference

_PROMISED: Mapping[str, Any] = {"supports": ("equal_buffers",)}


class InOneBroadcast(_Reference):
    """Right: the bytes of all buffers travel in one broadcast."""


class OneByOne(_Reference):
    """Right: one broadcast for each buffer there is when a forward starts."""

    declares: ClassVar[Mapping[str, Any]] = _PROMISED

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group, broadcast_buffers=False)

    def forward(self, *inputs: Any) -> Any:
        if self.training and torch.is_grad_enabled() and not self._no_sync_depth:
            for buffer in self._to_broadcast():
                whole = buffer.clone(memory_format=torch.contiguous_format)
                dist.broadcast(whole, group_src=0, group=self.group)
                buffer.copy_(whole)
        return super().forward(*inputs)

    def _to_broadcast(self) -> list[Tensor]:
        return list(self.module.buffers())


class NeverInForward(OneByOne):
    """Buffers are broadcast at the start and never again, though it promises so (no public incident found).

    BUF-1: not synchronised in forward.
    """

    def _to_broadcast(self) -> list[Tensor]:
        return []


class FirstForwardOnly(OneByOne):
    """Buffers are broadcast in the first forward alone (no public incident found). BUF-1: not synchronised in forward."""

    done = False

    def _to_broadcast(self) -> list[Tensor]:
        done, self.done = self.done, True
        return [] if done else super()._to_broadcast()


class ListMadeBefore(OneByOne):
    """The buffers are listed once: what forward assigns anew is not among them (pytorch#63916).

    BUF-1: not synchronised in forward.
    """

    def _to_broadcast(self) -> list[Tensor]:
        self.listed = getattr(self, "listed", None) or super()._to_broadcast()
        return self.listed


class FloatsOnly(OneByOne):
    """Buffers that are not floating-point are left out (no public incident found). BUF-1: not synchronised in forward."""

    def _to_broadcast(self) -> list[Tensor]:
        return [buffer for buffer in super()._to_broadcast() if buffer.is_floating_point()]


class EveryOtherForward(OneByOne):
    """Buffers are broadcast in every second forward (no public incident found). BUF-1: not synchronised in forward."""

    forwards = 0

    def _to_broadcast(self) -> list[Tensor]:
        self.forwards += 1
        return super()._to_broadcast() if self.forwards % 2 else []
