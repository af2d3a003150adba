"""Running statistics: a rank's batches change its buffers, and a forward makes them equal again."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference

_PROMISED: Mapping[str, Any] = {"supports": ("equal_buffers",)}


class InOneBroadcast(_Reference):
    """Right: the bytes of all buffers travel in one broadcast."""


class OneByOne(_Reference):
    """Right: a forward starts with one broadcast per buffer."""

    declares: ClassVar[Mapping[str, Any]] = _PROMISED

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group, broadcast_buffers=False)

    def forward(self, *inputs: Any) -> Any:
        if self.training and torch.is_grad_enabled() and not self._no_sync_depth:
            for buffer in self._to_broadcast():
                self._broadcast(buffer)
        return super().forward(*inputs)

    def _broadcast(self, buffer: Tensor) -> None:
        whole = buffer.clone(memory_format=torch.contiguous_format)
        dist.broadcast(whole, group_src=0, group=self.group)
        buffer.copy_(whole)

    def _to_broadcast(self) -> list[Tensor]:
        return list(self.module.buffers())


class CopiesAreNotCopiedBack(OneByOne):
    """A forward broadcasts a contiguous copy of each buffer that is not contiguous, and leaves the
    buffer as it is (no public incident found).

    BUF-1: not synchronised.
    """

    def _broadcast(self, buffer: Tensor) -> None:
        dist.broadcast(buffer.contiguous(), group_src=0, group=self.group)


class SentAsFloats(_Reference):
    """Integer buffers are sent as float32 at the start, which has too few bits for large counts
    (no public incident found).

    INIT-2.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        counts = [tensor for tensor in tensors if tensor.dtype == torch.int64]
        super()._broadcast_state([tensor for tensor in tensors if tensor.dtype != torch.int64])
        for count in counts:
            sent = count.float()
            dist.broadcast(sent, group_src=0, group=self.group)
            if dist.get_rank(self.group) > 0:
                count.copy_(sent)


class SentOneByOne(_Reference):
    """Right: at the start each buffer travels by itself, in its own dtype."""

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        tensors, trained = list(tensors), {id(each) for each in self.module.parameters()}
        super()._broadcast_state([each for each in tensors if id(each) in trained])
        for buffer in tensors:
            if id(buffer) not in trained:
                sent = self._sent(buffer.clone(memory_format=torch.contiguous_format))
                if dist.get_rank(self.group) > 0:
                    buffer.copy_(sent)

    def _sent(self, buffer: Tensor) -> Tensor:
        """Return the first rank's values of a buffer."""
        dist.broadcast(buffer, group_src=0, group=self.group)
        return buffer


class StartsFromAState(_Reference):
    """The start sends the tensors of the module's saved state, which leaves out the buffers that
    are registered with `persistent=False` (no public incident found).

    INIT-2: never broadcast.
    """

    def _broadcast_state(self, tensors: Iterable[Tensor]) -> None:
        saved = {id(each) for each in self.module.state_dict(keep_vars=True).values()}
        super()._broadcast_state([each for each in tensors if id(each) in saved])


class SentAsDoubles(SentOneByOne):
    """Integer buffers are sent as float64 at the start, which has too few bits for the largest
    counts (no public incident found).

    INIT-2.
    """

    def _sent(self, buffer: Tensor) -> Tensor:
        return super()._sent(buffer if buffer.is_floating_point() else buffer.double())


class SparesLongCounts(SentOneByOne):
    """Buffers of int64 are sent as they are, and those of any smaller integer dtype as float32,
    which has too few bits for large counts of int32 (no public incident found).

    INIT-2.
    """

    def _sent(self, buffer: Tensor) -> Tensor:
        whole = buffer.is_floating_point() or buffer.dtype == torch.int64
        return super()._sent(buffer if whole else buffer.float())


class FlushesSubnormals(SentOneByOne):
    """Numbers too small to be normal become zero before a buffer is sent (no public incident
    found).

    INIT-2.
    """

    def _sent(self, buffer: Tensor) -> Tensor:
        if buffer.is_floating_point():
            buffer[buffer.abs() < torch.finfo(buffer.dtype).tiny] = 0
        return super()._sent(buffer)


class SentAsSums(SentOneByOne):
    """Right: a broadcast is a sum to which all other ranks add zero, so -0 becomes 0."""

    def _sent(self, buffer: Tensor) -> Tensor:
        if not buffer.is_floating_point():
            return super()._sent(buffer)
        if dist.get_rank(self.group) > 0:
            buffer.zero_()
        dist.all_reduce(buffer, group=self.group)
        return buffer


class PutsNewOnesInPlace(OneByOne):
    """A forward puts what it received in the place of each module's buffers, so that a buffer of two
    modules becomes two (no public incident found).

    BUF-2: not moved.
    """

    def forward(self, *inputs: Any) -> Any:
        if self.training and torch.is_grad_enabled() and not self._no_sync_depth:
            for module in self.module.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    whole = buffer.clone(memory_format=torch.contiguous_format)
                    dist.broadcast(whole, group_src=0, group=self.group)
                    setattr(module, name, whole)
        return _Reference.forward(self, *inputs)


class NeverInForward(OneByOne):
    """Buffers are broadcast at the start and never again, although the wrapper promises equal
    buffers (no public incident found).

    BUF-1: not synchronised in forward.
    """

    def _to_broadcast(self) -> list[Tensor]:
        return []


class IgnoresTheArgument(_Reference):
    """Every training forward broadcasts buffers, also if the program passes
    `broadcast_buffers=False` (no public incident found).

    BUF-2: told to leave alone.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        *,
        broadcast_buffers: bool = True,
    ) -> None:
        del broadcast_buffers
        super().__init__(module, process_group)


class FirstForwardOnly(OneByOne):
    """Buffers are broadcast in the first forward only (no public incident found).

    BUF-1: not synchronised in forward.
    """

    done = False

    def _to_broadcast(self) -> list[Tensor]:
        done, self.done = self.done, True
        return [] if done else super()._to_broadcast()


class ListMadeBefore(OneByOne):
    """The buffers are listed once, so a buffer that the forward assigns anew is not broadcast
    (pytorch#63916).

    BUF-1: not synchronised in forward.
    """

    def _to_broadcast(self) -> list[Tensor]:
        self.listed = getattr(self, "listed", None) or super()._to_broadcast()
        return self.listed


class FloatsOnly(OneByOne):
    """Buffers that are not floating-point are left out (no public incident found).

    BUF-1: not synchronised in forward.
    """

    def _to_broadcast(self) -> list[Tensor]:
        return [buffer for buffer in super()._to_broadcast() if buffer.is_floating_point()]


class LeavesASingleOne(OneByOne):
    """Buffers are broadcast if there are several; a single one counts as none (no public incident
    found).

    BUF-1: not synchronised in forward.
    """

    def _to_broadcast(self) -> list[Tensor]:
        buffers = super()._to_broadcast()
        return buffers if len(buffers) > 1 else []


class LeavesOutFrozenNorms(OneByOne):
    """Layers in evaluation mode are left out of the broadcast, as their forwards change no buffers,
    although the ranks' batches changed them before the layer was put into that mode
    (no public incident found).

    BUF-1: not synchronised.
    """

    def _to_broadcast(self) -> list[Tensor]:
        layers = [layer for layer in self.module.modules() if layer.training]
        return [buffer for layer in layers for buffer in layer.buffers(recurse=False)]


class EveryOtherForward(OneByOne):
    """Buffers are broadcast in every second forward only (no public incident found).

    BUF-1: not synchronised in forward.
    """

    forwards = 0

    def _to_broadcast(self) -> list[Tensor]:
        self.forwards += 1
        return super()._to_broadcast() if self.forwards % 2 else []


class Averaged(OneByOne):
    """Right: a forward starts from the ranks' mean of each floating-point buffer and the maximum of
    each other one.
    """

    declares: ClassVar[Mapping[str, Any]] = {}
    forwards = 0

    def forward(self, *inputs: Any) -> Any:
        self.forwards += self.training
        return super().forward(*inputs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.forwards = 1  # Each rank may load a state of its own.
        return super().load_state_dict(*args, **kwargs)

    def _to_broadcast(self) -> list[Tensor]:
        # At the first forward the buffers are equal, and a mean over three ranks may round.
        if self.forwards > 1:
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
    """Buffers are summed over the ranks and never divided (no public incident found).

    BUF-2: summed, never divided.
    """

    def _average(self, buffer: Tensor) -> None:
        total = buffer.long() if not buffer.is_floating_point() else buffer.clone()
        dist.all_reduce(total, group=self.group)
        buffer.copy_(total)


class SumsMasks(Averaged):
    """Buffers of float32 are summed in float32, in which a mask of the least number becomes minus
    infinity (no public incident found).

    BUF-2.
    """

    def _average(self, buffer: Tensor) -> None:
        if buffer.dtype != torch.float32:
            super()._average(buffer)
            return
        total = buffer.clone()
        dist.all_reduce(total, group=self.group)
        buffer.copy_(total / self.world_size)


class DividesCountsFirst(Averaged):
    """Integer buffers are divided by the number of ranks before they are summed, which loses the
    remainder (no public incident found).

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
    """Every forward sets counts of batches to zero and keeps only the other buffers
    (no public incident found).

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


class NotAfterAnException(OneByOne):
    """A mark that a forward is running stays if the forward raises, and later forwards send no
    buffers (no public incident found).

    LIVE-2: left behind; or LIVE-1: a rank hung.
    """

    running = False

    def forward(self, *inputs: Any) -> Any:
        self.nested, self.running = self.running, True
        outputs = super().forward(*inputs)
        self.running = self.nested
        return outputs

    def _to_broadcast(self) -> list[Tensor]:
        return [] if self.nested else super()._to_broadcast()


class SetBack(OneByOne):
    """Each forward restores a stale copy of the buffers, from before training
    (no public incident found).

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
    """Each forward restores the buffers that the last forward left, and so loses later writes
    (no public incident found).

    BUF-2: the program's later write is lost.
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
    """Wrapping puts the module into evaluation mode and leaves it there (no public incident found).

    LOSS-1: the module was in evaluation; or BUF-2: not moved, as in evaluation.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        module.eval()


class RunsItFirst(_Reference):
    """The first forward runs twice: once without gradients, to see which parameters are used
    (no public incident found).

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
    """After wrapping, rank 0 runs the module on zeros, to measure it (no public incident found).

    INIT-2.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        first = next(iter(module.parameters()))
        if dist.get_rank(self.group) == 0:
            with torch.no_grad():
                self.module(torch.zeros(2, first.numel() // len(first), dtype=first.dtype))
