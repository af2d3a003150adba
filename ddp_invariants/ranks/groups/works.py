"""Collectives under way, which record when somebody waits for them and may withhold their results."""

import threading
import time
from typing import Any

import torch

from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.records.trace import WAITED, LastWords

# These classes are public names of torch.distributed without type stubs.
_c10d: Any = torch._C._distributed_c10d

Row = list[Any]
"""A `trace.Call` while it is being recorded."""
FUTURE_DELAY = 0.002
"""Seconds until a withheld result goes to its future, which does not report when it is awaited.

It takes three times as long if no other is under way, so that it arrives after the next one's.
"""


class Log:
    """The state shared by all groups of a case: one clock, one numbering, the last words.

    Args:
        words: Memory shared with the controller.
        case: The case's number.

    Attributes:
        thread: The thread in which the rank trains.
    """

    def __init__(self, words: LastWords, case: int) -> None:
        self.words, self._case = words, case
        self.thread = threading.get_ident()
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Start the clock of a run whose groups are observed; no other run is recorded."""
        self._began = time.perf_counter()
        self.words.begin(self._case)

    def now(self) -> float:
        """Return the seconds since the case began."""
        return time.perf_counter() - self._began


class ObservedWork(_c10d.Work):  # type: ignore[misc]  # the base class has no type stubs
    """A collective under way that records when somebody waits for it.

    Attributes:
        row: The collective as it was issued.
    """

    def __init__(self, inner: Any, row: Row, number: int, log: "Log") -> None:
        super().__init__()
        self.inner, self.row, self._number, self._log = inner, row, number, log

    def _waited(self) -> None:
        if self.row[WAITED] is None:
            self.row[WAITED] = self._log.now()

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the result."""
        self._waited()
        with self._log.words.waiting(self._number):
            return bool(self.inner.wait(timeout) if timeout else self.inner.wait())

    def synchronize(self) -> None:
        """Wait for the result, like `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make the caller's stream wait for the result.

        Raises:
            RuntimeError: There are no streams here, as torch says for any collective.
        """
        self._waited()
        self.inner.block_current_stream()

    def is_completed(self) -> bool:
        """Return whether the collective is done.

        A caller that learns so need not wait, so this counts as waiting.
        """
        done = bool(self.inner.is_completed())
        if done:
            self._waited()
        return done

    def is_success(self) -> bool:
        """Return whether the collective is done without an error."""
        return bool(self.inner.is_success())

    def exception(self) -> Any:
        """Return the exception with which the collective failed."""
        return self.inner.exception()

    def result(self) -> Any:
        """Return the tensors that the collective wrote."""
        return self.inner.result()

    def source_rank(self) -> int:
        """Return the rank that sent what was received."""
        return int(self.inner._source_rank())

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future of the result.

        This counts as waiting, because the harness cannot see when the caller waits for the future.
        """
        self._waited()
        return self.inner.get_future()


class WithheldWork(ObservedWork):
    """A collective whose result reaches the caller's buffers only when the caller waits for it.

    The contents of a buffer are undefined between the start of a collective and its completion.
    Therefore a correct program cannot see the difference.

    Attributes:
        done: True once the result has been handed over.
        overwritten: True if the caller wrote to a buffer while it was in flight.
    """

    def __init__(
        self,
        begun: ObservedWork,
        tensors: list[torch.Tensor],
        results: list[torch.Tensor],
        withheld: "list[WithheldWork]",
        sentinel: float,
        rank_device: RankDevice,
    ) -> None:
        super().__init__(begun.inner, begun.row, begun._number, begun._log)
        self._withheld_works, self._rank_device = withheld, rank_device
        self.done = self.overwritten = False
        self._tensors, self._results = tensors, results
        self._addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._lock = threading.Lock()
        self._future: Any = None
        with torch.no_grad():
            for tensor in tensors:
                tensor.detach().fill_(
                    sentinel if tensor.is_floating_point() or tensor.is_complex() else 77
                )
        self._take_snapshots()

    def _take_snapshots(self) -> None:
        """Record the contents of the buffers, and the device's moment at which they were read.

        The stream that waits may differ from the stream that began.
        """
        self._snapshots = [tensor.detach().clone() for tensor in self._tensors]
        self._taken = self._rank_device.moment()

    def _hand_over(self, timeout: Any = None) -> None:
        with self._lock:
            if self.done:
                return
            _ = self.inner.wait(timeout) if timeout else self.inner.wait()
            self._rank_device.wait_for(self._taken)
            with torch.no_grad():
                for tensor, snapshot, result in zip(
                    self._tensors, self._snapshots, self._results, strict=True
                ):
                    self.overwritten |= not _same(tensor.detach(), snapshot)
                    tensor.detach().copy_(result)
                    self._rank_device.keep(result)
            self.done = True
            # Two collectives into one buffer (a tied parameter) are in order. The result of the
            # first, when handed over, is no foreign write.
            for work in self._withheld_works:
                if not work.done and not work._addresses.isdisjoint(self._addresses):
                    work._take_snapshots()

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the result and hand it over."""
        self._waited()
        with self._log.words.waiting(self._number):
            self._hand_over(timeout)
        return True

    def block_current_stream(self) -> None:
        """Hand the result over on the caller's stream.

        torch would block the stream until the future is complete, which needs the stream.
        """
        if self._rank_device.on_device:
            self.wait()
        else:
            super().block_current_stream()

    def is_completed(self) -> bool:
        """Hand over once the collective is done, since polling is a way to wait."""
        self._waited()
        if not self.done and self.inner.is_completed():
            self._hand_over()
            self._rank_device.finish()  # A caller that learns so may read the result on any stream.
        return self.done

    def is_success(self) -> bool:
        """Return whether the result has been handed over."""
        return self.done

    def exception(self) -> None:
        """Return None, since `wait` raises any exception."""

    def result(self) -> list[torch.Tensor]:
        """Hand over the result and return the buffers."""
        self._hand_over()
        return self._tensors

    def get_future(self) -> Any:
        """Return a future that completes a little later, whether or not anybody waits for it.

        After a `wait` it is complete at once.
        """
        before = sum(not work.done for work in self._withheld_works if work is not self)
        delay = FUTURE_DELAY * (1 if before % 2 else 3)
        self._waited()
        if (
            self._future is None and self.done
        ):  # Backends complete the future before `wait` returns.
            self._future = self._new_future()
            self._future.set_result(list(self._tensors))
        promise = getattr(self.inner, "promise", None)
        if self._future is None and promise is not None:  # No other thread runs in a simulation.
            self._future = promise(self._hand_over, lambda: list(self._tensors))
        if self._future is None:
            rank_device = self._rank_device
            future = self._future = self._new_future()

            def hand_over() -> None:
                time.sleep(delay)
                rank_device.enter()  # Each thread has its own current device.
                try:
                    self._hand_over()
                except Exception as error:  # noqa: BLE001 - any exception belongs to the waiter
                    future.set_exception(error)
                else:
                    future.set_result(list(self._tensors))

            threading.Thread(target=hand_over, daemon=True).start()
        return self._future

    def _new_future(self) -> Any:
        rank_device = self._rank_device
        return torch.futures.Future(devices=[rank_device.device] if rank_device.on_device else None)


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors are equal, where NaN equals NaN: it may be the sentinel."""
    return bool(
        torch.equal(left, right) or ((left == right) | ((left != left) & (right != right))).all()
    )
