"""Buckets are sent while backward runs, and a call of the loop after backward waits for them."""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._hooks import weakly
from ddp_invariants.faults._start import broadcast

Bucket = tuple[nn.Parameter, ...]
"""Parameters of one dtype whose gradients travel together."""


class FinishCall(nn.Module):
    """Right: each bucket is sent when complete; the loop's call after backward waits for all and
    writes the means back.
    """

    # The buckets are planned once, at the start.
    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("assign", "freeze", "unfreeze", "in_parts")
    }

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__()
        self.module, self.group, self.cap = module, process_group, int(bucket_cap_mb * 2**20)
        self.world_size = dist.get_world_size(process_group)
        broadcast([*module.parameters(), *module.buffers()], process_group)
        self.buckets = self._plan(
            [p for p in reversed(list(module.parameters())) if p.requires_grad]
        )
        self._arrived: set[Tensor] = set()
        self._sent: dict[Bucket, tuple[Tensor, Any]] = {}
        for bucket in self.buckets:
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(weakly(self._ready))

    def _plan(self, parameters: list[nn.Parameter]) -> list[Bucket]:
        plan: list[list[nn.Parameter]] = []
        filling: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in parameters:
            bucket = filling.get(parameter.dtype)
            if bucket is None or self._is_full(sum(p.nbytes for p in bucket), parameter.nbytes):
                bucket = filling[parameter.dtype] = []
                plan.append(bucket)
            bucket.append(parameter)
        return [tuple(bucket) for bucket in plan]

    def _is_full(self, used: int, more: int) -> bool:
        return used + more > self.cap

    def forward(self, *inputs: Any) -> Any:
        self._forget()
        return self.module(*inputs)

    def _forget(self) -> None:
        """Wait for collectives that a failed backward left in flight, and drop them."""
        for _, work in self._sent.values():
            work.wait()
        self._arrived.clear()
        self._sent.clear()

    def _ready(self, parameter: Tensor) -> None:
        self._arrived.add(parameter)
        for bucket in self.buckets:
            if not self._arrived.issuperset(bucket):
                break  # Buckets go in plan order, so that all ranks send the same sequence.
            self._send(bucket)

    def _send(self, bucket: Bucket) -> None:
        if bucket not in self._sent:
            flat = self._packed(bucket)
            self._sent[bucket] = flat, self._reduce(flat)

    def _packed(self, bucket: Bucket) -> Tensor:
        return torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket]
        )

    def _reduce(self, flat: Tensor) -> Any:
        return dist.all_reduce(flat, group=self.group, async_op=True)

    def finish_gradient_synchronization(self) -> None:
        for bucket in self.buckets:
            self._send(bucket)
        for bucket, (flat, work) in self._sent.items():
            self._wait(work)
            self._write_back(bucket, flat)
        self._clear()

    def _wait(self, work: Any) -> None:
        work.wait()

    def _write_back(self, bucket: Bucket, flat: Tensor) -> None:
        for parameter, total in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(total.view(parameter.shape) / self.world_size)

    def _clear(self) -> None:
        self._arrived.clear()
        self._sent.clear()


class KeepsTheLastHandle(FinishCall):
    """Each bucket's handle overwrites the one before, so only the last is awaited
    (no public incident found).

    COMM-3: a wait is missing.
    """

    def _reduce(self, flat: Tensor) -> Any:
        self._handle = super()._reduce(flat)
        return self._handle

    def _wait(self, work: Any) -> None:
        if work is self._handle:
            super()._wait(work)


class PoolsBuffersByShape(FinishCall):
    """Buckets of equal shapes share a buffer: the later one fills it before the earlier one is read
    (similar: pytorch#43307).

    GRAD-2: of equal shape: swapped.
    """

    def _send(self, bucket: Bucket) -> None:
        alike = [
            sent for sent in self._sent if [p.shape for p in sent] == [p.shape for p in bucket]
        ]
        if bucket in self._sent or not alike:
            super()._send(bucket)
            return
        flat, work = self._sent[alike[0]]
        work.wait()
        flat.copy_(self._packed(bucket))
        self._sent[alike[0]] = self._sent[bucket] = flat, self._reduce(flat)


class SendsOnce(FinishCall):
    """Sent buckets are not forgotten, so every later step gets the means of the first
    (no public incident found).

    GRAD-5: stale.
    """

    def _forget(self) -> None:
        pass

    def _clear(self) -> None:
        self._arrived.clear()


class ClosesAtTheCap(FinishCall):
    """A bucket is closed before a gradient that would fill it exactly
    (similar: NVIDIA/recsys-examples#374).

    COMM-4: buckets are not filled to their capacity.
    """

    def _is_full(self, used: int, more: int) -> bool:
        return used + more >= self.cap


class ChoosesItsDtype(FinishCall):
    """A rank sends float64 if its own gradients are large (scaling by rank: pytorch#136009).

    COMM-1: ranks issue different collectives.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        flat = super()._packed(bucket)
        return flat.double() if (flat.abs() > 16).any() else flat


class SendsNothingNotFinite(FinishCall):
    """A rank whose gradients are not finite sends zeros, without agreement with the others
    (ecmwf/WeatherGenerator#2718).

    GRAD-7: was scrubbed; or GRAD-3.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        flat = super()._packed(bucket)
        return flat if flat.isfinite().all() else torch.zeros_like(flat)


class TravelsInFloat16(FinishCall):
    """Buckets are compressed to float16, but the wrapper does not declare it
    (no public incident found).

    GRAD-2: rounded to float16.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        return super()._packed(bucket).half()


class CutsToTheCap(FinishCall):
    """A gradient above the cap is sent in pieces of the cap's size, without the last incomplete
    piece (similar: fairscale#222).

    GRAD-1: never reduced.
    """

    def _reduce(self, flat: Tensor) -> Any:
        piece = max(1, self.cap // flat.element_size())
        whole = flat.numel() if flat.numel() < piece else flat.numel() - flat.numel() % piece
        return super()._reduce(flat[:whole])


class AddsItselfWhenAlone(FinishCall):
    """In a group of one rank the buffer is added to itself, as if that were the sum over all ranks
    (NVIDIA/Megatron-LM#6660).

    PARAM-4: training on one rank differs from plain training.
    """

    def _packed(self, bucket: Bucket) -> Tensor:
        flat = super()._packed(bucket)
        return flat + flat if self.world_size == 1 else flat
