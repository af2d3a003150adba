"""The bucketed reference on a device, where two streams have no order unless one waits."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class WithAStream(Reference):
    """Right: buckets are packed and sent on a second stream, and each stream waits when it must."""

    stream: torch.cuda.Stream | None = None

    def _aside(self, bucket: Bucket) -> AbstractContextManager[object]:
        """Return a context that queues work on the second stream; on the CPU it does nothing."""
        device = bucket.parameters[0].device
        if device.type == "cpu":
            return nullcontext()
        self.stream = self.stream or torch.cuda.Stream(device)
        return torch.cuda.stream(self.stream)

    def __deepcopy__(self, _memo: object) -> "WithAStream":
        raise TypeError("a stream has no copy")

    def _before(self) -> None:
        """Make the second stream wait for the work queued on this one."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())

    def _after(self) -> None:
        """Make this stream wait for the work queued on the second one."""
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
    """The stream that packs and sends does not wait for the stream that computes
    (NVIDIA/Megatron-LM#3670).

    GPU-1: it changes when.
    """

    def _before(self) -> None:
        return


class ReadsTooEarly(WithAStream):
    """The stream that computes does not wait for the stream that communicates (pytorch#37790).

    GPU-1: it changes when.
    """

    def _after(self) -> None:
        return


class ReadsItsCopyTooEarly(Reference):
    """Gradients are copied to pinned memory without blocking, and sent before the copy has ended
    (found by reading nanochat's data loader).

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
