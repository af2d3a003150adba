"""The bucketed reference: waiting, ordering, failing, ending."""

import time
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.reference.ddp import Bucket
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference

_SUM = dist.all_reduce
"""The unpatched all-reduce: a fault may replace `dist.all_reduce` for one call."""


class NoWait(Reference):
    """Results are written back without waiting for the collectives (no public incident found).

    COMM-3: a wait is missing.
    """

    def _wait(self, bucket: Bucket) -> None:
        del bucket


class WaitsForTheLastOnly(Reference):
    """Only the last handle is kept, so only the last bucket is waited for (a well-known mistake).

    COMM-3: a wait is missing.
    """

    def _wait(self, bucket: Bucket) -> None:
        if bucket is self._buckets[-1]:
            super()._wait(bucket)


class ForgetsOneWait(Reference):
    """The first bucket's handle is never waited for (no public incident found).

    COMM-3: a wait is missing.
    """

    def _wait(self, bucket: Bucket) -> None:
        if bucket is not self._buckets[0]:
            super()._wait(bucket)


class DividesInFlight(Reference):
    """The bucket is divided while its collective is in flight (no public incident found).

    COMM-3: a buffer is used before its wait.
    """

    def _launch(self, bucket: Bucket) -> None:
        started = bucket.work is not None
        super()._launch(bucket)
        if not started and bucket.flat is not None:
            bucket.flat /= dist.get_world_size(self.group)
            self.world_size = 1


class TakesResultsAsTheyArrive(Reference):
    """Results are given to the buckets in the order in which they arrive, not in which they were
    asked for (a well-known mistake).

    COMM-2: it changes when results are withheld.
    """

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is not None:
            return
        super()._launch(bucket)
        work: Any = bucket.work
        future = work.get_future()
        self.__dict__.setdefault("_asked", []).append((bucket, future))
        arrived = self.__dict__.setdefault("_arrived", [])
        future.then(lambda done: arrived.append(done.value()[0]))

    def _send_and_wait(self) -> None:
        for bucket in self._buckets:
            self._launch(bucket)
        asked, arrived = self.__dict__.pop("_asked"), self.__dict__.pop("_arrived")
        for _, future in asked:
            future.wait()
        for (bucket, _), flat in zip(asked, arrived, strict=False):
            if flat.numel() == bucket.flat.numel():
                bucket.flat = flat
        self._reducing = False


class ReducesInTwoWays(Reference):
    """Rank 1 takes the maximum and the other ranks take the sum; gloo does not notice
    (no public incident found).

    COMM-1: ranks issue different collectives.
    """

    def _launch(self, bucket: Bucket) -> None:
        if bucket.work is None and dist.get_rank(self.group) == 1:
            plain, dist.all_reduce = dist.all_reduce, partial(dist.all_reduce, op=dist.ReduceOp.MAX)
            try:
                super()._launch(bucket)
            finally:
                dist.all_reduce = plain
        super()._launch(bucket)


class HangsOnThree(Reference):
    """Rank 2 reduces nothing, so the other ranks wait for it for ever (no public incident found).

    LIVE-1: rank 2 went on to the end.
    """

    def _backward_begins(self, gradient: Tensor) -> None:
        if dist.get_rank(self.group) != 2:
            super()._backward_begins(gradient)


class DiesInBackward(Reference):
    """Rank 1's process aborts in backward without a message (no public incident found).

    LIVE-1: rank 1 was ended by SIGABRT.
    """

    def _backward_begins(self, gradient: Tensor) -> None:
        if dist.get_rank(self.group) == 1:
            torch._C._abort()  # type: ignore[attr-defined]  # torch has no stub of it
        super()._backward_begins(gradient)


class RaisesLater(Reference):
    """The third forward raises on every rank (no public incident found). LIVE-1: out of buckets."""

    count = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        if self.count == 3:
            raise RuntimeError("out of buckets")
        return super().forward(*args, **kwargs)


class NeverArmedAgain(Reference):
    """A reduction that a failed backward left half done is never reset, so no other starts
    (picotron after an exception).

    LIVE-2: never reduced.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._reducing, reducing = False, self._reducing
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._reducing = reducing


class WritesTheFailedResult(Reference):
    """A bucket keeps the result of a backward that failed after it was sent, and the next backward
    writes that result (no public incident found).

    LIVE-2: state that the aborted.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._kept = {id(b): b.flat for b in self._buckets if self._reducing and b.work is not None}
        return super().forward(*args, **kwargs)

    def _write_back(self, bucket: Bucket) -> None:
        bucket.flat = self._kept.get(id(bucket), bucket.flat)
        super()._write_back(bucket)


class FailsOnlyHalfWay(Reference):
    """A backward that failed before its first gradient is not told from one that never began
    (no public incident found).

    LIVE-2: never reduced.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        begun = any(len(bucket.waiting) < len(bucket.parameters) for bucket in self._buckets)
        early, self._reducing = self._reducing and not begun, self._reducing and begun
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._reducing = early


class SwallowsErrors(Reference):
    """The forward catches the module's exceptions and returns the last good result
    (no public incident found).

    LIVE-2: an exception does not reach the user.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            self._result = super().forward(*args, **kwargs)
        return getattr(self, "_result", torch.zeros(1, 1, requires_grad=True))


class CountsOpenForwards(Reference):
    """A forward within another is the module's own. The count of open forwards goes down after an
    `Exception`, but not after a `KeyboardInterrupt`, which is none (no public incident found).

    LIVE-2: never reduced.
    """

    open_forwards = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.open_forwards:
            return self.module(*args, **kwargs)
        self.open_forwards += 1
        try:
            result = super().forward(*args, **kwargs)
        except Exception:
            self.open_forwards -= 1
            raise
        self.open_forwards -= 1
        return result


class GoesOnAlone(Reference):
    """A failed reduction is ignored, and the local gradient is used
    (error handling around the wait).

    LIVE-3: a rank finishes although another rank died.
    """

    def _wait(self, bucket: Bucket) -> None:
        with suppress(RuntimeError):
            super()._wait(bucket)


class LeavesAThread(Reference):
    """Every wrapper starts a thread that never ends (a heartbeat thread without a stop).

    LIVE-4: leaves threads behind.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float = 25.0,
    ) -> None:
        super().__init__(module, process_group, bucket_cap_mb)
        Thread(target=Event().wait, daemon=True).start()


class TakesWhatHasArrived(Reference):
    """A result that is some milliseconds late is ignored, and the local gradient is kept
    (no public incident found).

    COMM-2: it changes when.
    """

    def _wait(self, bucket: Bucket) -> None:
        assert bucket.work is not None
        until = time.monotonic() + 0.012
        while not bucket.work.is_completed() and time.monotonic() < until:
            time.sleep(0.0001)
        self._too_late = time.monotonic() >= until
        super()._wait(bucket)

    def _write_back(self, bucket: Bucket) -> None:
        if not self._too_late:
            super()._write_back(bucket)
