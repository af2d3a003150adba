"""The bucketed reference on a device, where what is queued on two streams is in no order that nobody asked for."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class WithAStream(Reference):
    """Right: buckets are packed and sent on a stream of their own, and both streams wait where they must."""

    stream: torch.cuda.Stream | None = None

    def _aside(self, bucket: Bucket) -> AbstractContextManager[object]:
        """What is queued within is queued on the other stream; on the CPU nothing is queued."""
        device = bucket.parameters[0].device
        if device.type == "cpu":
            return nullcontext()
        self.stream = self.stream or torch.cuda.Stream(device)
        return torch.cuda.stream(self.stream)

    def __deepcopy__(self, _memo: object) -> "WithAStream":
        raise TypeError("a stream has no copy")

    def _before(self) -> None:
        """Have the other stream wait for what is queued on this one."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())

    def _after(self) -> None:
        """Have this stream wait for what is queued on the other one."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def _launch(self, bucket: Bucket) -> None:
        aside = self._aside(bucket)
        self._before()
        with aside:
            super()._launch(bucket)

    def _wait(self, bucket: Bucket) -> None:
        with self._aside(bucket):
            super()._wait(bucket)
        self._after()


class SendsTooEarly(WithAStream):
    """The stream that packs and sends does not wait for the one that computes (NVIDIA/Megatron-LM#3670).

    GPU-1: it changes when.
    """

    def _before(self) -> None:
        return


class ReadsTooEarly(WithAStream):
    """The stream that computes does not wait for the one that communicates (pytorch#37790).

    GPU-1: it changes when.
    """

    def _after(self) -> None:
        return


class ReadsItsCopyTooEarly(Reference):
    """Gradients go to pinned memory without blocking, and are sent from there at once (nanochat's data loader, by reading).

    GPU-1: it changes when.
    """

    def _launch(self, bucket: Bucket) -> None:
        if bucket.parameters[0].device.type == "cpu" or bucket.work is not None:
            super()._launch(bucket)
            return
        packed = self._packed(bucket)
        bucket.flat = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True).copy_(
            packed, non_blocking=True
        )
        bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)
