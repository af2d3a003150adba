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


class Averaged(OneByOne):
    """Right: a forward starts from the mean of the ranks' buffers, of what is whole from the largest."""

    declares: ClassVar[Mapping[str, Any]] = {}
    forwards = 0

    def forward(self, *inputs: Any) -> Any:
        self.forwards += self.training
        return super().forward(*inputs)

    def _to_broadcast(self) -> list[Tensor]:
        if self.forwards > 1:  # In the first they are equal, and a mean of three might round.
            for buffer in self.module.buffers():
                self._average(buffer)
        return []

    def _average(self, buffer: Tensor) -> None:
        if buffer.is_floating_point():
            total = buffer.double()
            dist.all_reduce(total, group=self.group)
            buffer.copy_(total / self.world_size)
        else:
            largest = buffer.long()
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
            buffer.copy_(largest)


class NeverDividesThem(Averaged):
    """Buffers are added up over the ranks and never divided (no public incident found). BUF-2: summed, never divided."""

    def _average(self, buffer: Tensor) -> None:
        total = buffer.long() if not buffer.is_floating_point() else buffer.clone()
        dist.all_reduce(total, group=self.group)
        buffer.copy_(total)


class DividesCountsFirst(Averaged):
    """Whole numbers are divided by the ranks before they are added up, and lose what is left over (no public incident found).

    BUF-2.
    """

    def _average(self, buffer: Tensor) -> None:
        if buffer.dtype != torch.int64:
            super()._average(buffer)
            return
        share = buffer // self.world_size
        dist.all_reduce(share, group=self.group)
        buffer.copy_(share)


class CountsStartOver(OneByOne):
    """Only fractions and masks are kept: counts of batches are set to zero in every forward (no public incident found).

    BUF-2: it is zero.
    """

    declares: ClassVar[Mapping[str, Any]] = {}

    def forward(self, *inputs: Any) -> Any:
        if self.training and self.ran:
            for buffer in self.module.buffers():
                if buffer.dtype == torch.int64:
                    buffer.zero_()
        self.ran = True
        return super().forward(*inputs)

    ran = False


class SetBack(OneByOne):
    """Each forward starts from the buffers there were when the module was wrapped: a stale copy (no public incident found).

    BUF-2: set back; or BUF-2: reset.
    """

    def _to_broadcast(self) -> list[Tensor]:
        buffers = dict(self.module.named_buffers())
        if not hasattr(self, "first"):
            self.first = {name: buffer.clone() for name, buffer in buffers.items()}
        for name, buffer in buffers.items():
            buffer.copy_(self.first[name])
        return list(buffers.values())


class LosesWhatIsWritten(OneByOne):
    """Each forward starts from a copy of what the one before left, whatever was written since (no public incident found).

    BUF-2: what the program wrote into it since is lost.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        self.left = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        return result

    def _to_broadcast(self) -> list[Tensor]:
        buffers = dict(self.module.named_buffers())
        for name, buffer in buffers.items() if hasattr(self, "left") else ():
            buffer.copy_(self.left[name])
        return list(buffers.values())


class LeftInEvaluation(_Reference):
    """The module is put into evaluation while it is wrapped, and left there (no public incident found).

    LOSS-1: the module was in evaluation; or BUF-2: not moved, as in evaluation.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        module.eval()


class RunsItFirst(_Reference):
    """The first forward is run once without gradients, to see what is used, and then again (no public incident found).

    BUF-2: the forward ran twice.
    """

    ran = False

    def forward(self, *inputs: Any) -> Any:
        if self.training and not self.ran:
            self.ran = True
            with torch.no_grad():
                self.module(*inputs)
        return super().forward(*inputs)


class RunsItOnTheFirstRank(_Reference):
    """Once wrapped, the module is run on zeros on the first rank, to measure it (no public incident found).

    INIT-2.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        first = next(iter(module.parameters()))
        if dist.get_rank(self.group) == 0:
            with torch.no_grad():
                self.module(torch.zeros(2, first.numel() // len(first), dtype=first.dtype))
