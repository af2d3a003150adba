"""A hook per parameter: each gradient travels alone, as soon as it is ready.

Source: Li et al. 2020, section 3.2, arXiv:2006.15704, without the buckets.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from ddp_invariants.faults._hooks import weakly
from ddp_invariants.faults._start import broadcast


class PerParameter(nn.Module):
    """Right: a hook averages each gradient, with a blocking call, once autograd has added to it."""

    # Every rank must have every gradient: in one order, whole, of the parameters at the start.
    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused", "crossed", "unfreeze", "assign", "in_parts")
    }

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.world_size = dist.get_world_size(process_group)
        self._quiet = 0
        self._start()
        for parameter in module.parameters():
            if parameter.requires_grad:
                self._hook(parameter)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    @contextmanager
    def _accumulating(self) -> Iterator[None]:
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def no_sync(self) -> AbstractContextManager[None]:
        return self._accumulating()

    def _start(self) -> None:
        broadcast([*self.module.parameters(), *self.module.buffers()], self.group)

    def _hook(self, parameter: nn.Parameter) -> None:
        parameter.register_post_accumulate_grad_hook(weakly(self._ready))

    def _ready(self, parameter: Tensor) -> None:
        if not self._quiet:
            self._reduce(parameter)

    def _reduce(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.copy_(self._mean(parameter.grad))

    def _mean(self, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total / self.world_size


class LeavesOnly(PerParameter):
    """Parameters are taken from the module itself and from modules without children, so one that a
    parametrization computes with stays local (no public incident found).

    INIT-1: never broadcast.
    """

    def _start(self) -> None:
        broadcast([*self._found(), *self.module.buffers()], self.group)

    def _hook(self, parameter: nn.Parameter) -> None:
        if any(parameter is found for found in self._found()):
            super()._hook(parameter)

    def _found(self) -> list[nn.Parameter]:
        leaves = (each for each in self.module.modules() if not any(each.children()))
        found = [p for each in (self.module, *leaves) for p in each.parameters(recurse=False)]
        return list(dict.fromkeys(found))


class Overlapped(PerParameter):
    """Right: hooks start the sums; a callback at the end of backward waits for them and writes the
    means back.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        self._pending: list[tuple[Tensor, Tensor, Any]] = []

    def forward(self, *inputs: Any) -> Any:
        self._forget()
        return super().forward(*inputs)

    def _forget(self) -> None:
        """Wait for collectives that a failed backward left in flight, and drop them."""
        for _, _, work in self._pending:
            work.wait()
        self._pending.clear()

    def _reduce(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        if not self._pending:
            Variable._execution_engine.queue_callback(self._finish)
        total = parameter.grad.clone(memory_format=torch.contiguous_format)
        self._pending.append(
            (parameter, total, dist.all_reduce(total, group=self.group, async_op=True))
        )

    def _finish(self) -> None:
        for parameter, total, work in self._pending:
            self._wait(work)
            assert parameter.grad is not None
            parameter.grad.copy_(total / self.world_size)
        self._pending.clear()

    def _wait(self, work: Any) -> None:
        work.wait()


class ReducesTheIncomingGradient(PerParameter):
    """A tensor hook averages only the incoming gradient, so gradients accumulated before stay local
    (picotron before d0efdcc).

    GRAD-8: only the last micro-step was reduced.
    """

    def _hook(self, parameter: nn.Parameter) -> None:
        parameter.register_hook(lambda incoming: incoming if self._quiet else self._mean(incoming))


class SumsInPlace(PerParameter):
    """A tensor hook sums the incoming gradient in place, which autograd also hands to another parameter
    where both are added, so that this one's gradient is summed twice (no public incident found).

    GRAD-2: summed, never divided.
    """

    def _hook(self, parameter: nn.Parameter) -> None:
        def add_up(incoming: Tensor) -> Tensor:
            if self._quiet:
                return incoming
            total = incoming if incoming.is_contiguous() else incoming.contiguous()
            if parameter.grad is not None:
                total.add_(parameter.grad)
                parameter.grad = None
            dist.all_reduce(total, group=self.group)
            return total

        parameter.register_hook(add_up)
        super()._hook(parameter)

    def _reduce(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.div_(self.world_size)


class StoresAndReturns(PerParameter):
    """A tensor hook adds the mean to .grad and also returns it, so autograd adds it again
    (course solutions).

    GRAD-2: accumulated once too often.
    """

    def _hook(self, parameter: nn.Parameter) -> None:
        def store(incoming: Tensor) -> Tensor:
            mean = self._mean(incoming)
            parameter.grad = mean.clone() if parameter.grad is None else parameter.grad + mean
            return mean

        parameter.register_hook(store)


class LosesWhatIsNotContiguous(PerParameter):
    """The sum of a gradient that is not contiguous goes to a temporary copy and is lost
    (NVIDIA/Megatron-LM#5337).

    GRAD-1: divided, but not reduced.
    """

    def _reduce(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad.contiguous(), group=self.group)
        parameter.grad /= self.world_size


class SkipsTheSmall(PerParameter):
    """Gradients of fewer than four elements are not sent and stay local (no public incident found).

    GRAD-1: never reduced.
    """

    def _reduce(self, parameter: Tensor) -> None:
        if parameter.numel() >= 4:
            super()._reduce(parameter)


class SumsTiedTwice(PerParameter):
    """A tied parameter is summed once per name, but divided only once (no public incident found).

    GRAD-2: summed, never divided.
    """

    def _hook(self, parameter: nn.Parameter) -> None:
        names = [
            name
            for name, candidate in self.module.named_parameters(remove_duplicate=False)
            if candidate is parameter
        ]
        for _ in names:
            parameter.register_post_accumulate_grad_hook(weakly(self._ready))
        parameter.register_post_accumulate_grad_hook(weakly(self._divide))

    def _reduce(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        total = parameter.grad.contiguous()
        dist.all_reduce(total, group=self.group)
        parameter.grad.copy_(total)

    def _divide(self, parameter: Tensor) -> None:
        if not self._quiet:
            assert parameter.grad is not None
            parameter.grad /= self.world_size


class BroadcastsWithoutWaiting(PerParameter):
    """The broadcasts at the start are asynchronous, and nobody waits for them
    (no public incident found).

    COMM-3: a wait is missing.
    """

    def _start(self) -> None:
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            dist.broadcast(
                tensor.detach().contiguous(), group_src=0, group=self.group, async_op=True
            )


class BroadcastsFloatsOnly(PerParameter):
    """Only floating-point buffers are broadcast, so counts and masks stay local
    (for all buffers: pytorch#111138).

    INIT-2: never broadcast.
    """

    def _start(self) -> None:
        buffers = [buffer for buffer in self.module.buffers() if buffer.is_floating_point()]
        broadcast([*self.module.parameters(), *buffers], self.group)


class Unfreezes(PerParameter):
    """Every parameter is made trainable, so that each can have a hook (no public incident found).

    INIT-3: requires_grad True, expected False.
    """

    def _start(self) -> None:
        self.module.requires_grad_()
        super()._start()


class NoSyncUnheard(PerParameter):
    """The no_sync flag is read when the hooks are made, not when they run
    (similar: karpathy/build-nanogpt#30).

    GRAD-8: a backward inside no_sync communicates.
    """

    def _hook(self, parameter: nn.Parameter) -> None:
        if not self._quiet:
            parameter.register_post_accumulate_grad_hook(weakly(self._reduce))


class NoSyncForGood(PerParameter):
    """Entering no_sync switches synchronisation off, but leaving it does not switch it on
    (picotron after an exception).

    GRAD-8: never reduced.
    """

    def no_sync(self) -> AbstractContextManager[None]:
        self._quiet += 1
        return nullcontext()


class AwaitsAtTheNextForward(Overlapped):
    """The sums are awaited only when the next forward starts, after the optimizer's step
    (meta-pytorch/torchrec#4421).

    COMM-3: a wait is missing.
    """

    def _forget(self) -> None:
        super()._finish()

    def _finish(self) -> None:
        pass


class SkipsZeros(PerParameter):
    """A rank does not send a gradient that is zero, so it falls out of step with the others
    (no public incident found).

    LIVE-1: a rank hung.
    """

    def _reduce(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        if parameter.grad.any():
            super()._reduce(parameter)


class OpensALog(PerParameter):
    """The wrapper's log is closed when the wrapper is collected, which is never, because hooks hold
    it (no public incident found).

    LIVE-4: descriptors behind.
    """

    def _start(self) -> None:
        self._log = Path(os.devnull).open("a", encoding="utf-8")  # noqa: SIM115 - the fault
        super()._start()

    def _hook(self, parameter: nn.Parameter) -> None:
        parameter.register_post_accumulate_grad_hook(self._ready)
