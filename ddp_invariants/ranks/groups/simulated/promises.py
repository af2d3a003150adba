"""Futures of simulated collectives, completed in the thread of the rank that asked for them.

C++ code of torch waits for a future without Python's knowledge: the reducer of its DDP does so at
the end of a backward. A wait there would stop the only rank that runs. So a future that is asked
for within a backward is completed by a callback of that backward, before the reducer's own. A
future that is asked for within such a callback is completed at once: with a static graph, the
reducer starts and finishes its first reductions in one callback.
"""

from collections.abc import Callable
from typing import Any

import torch

from ddp_invariants.ranks.groups.simulated.arrivals import Arrivals
from ddp_invariants.ranks.groups.simulated.turns import Ready

_Future: Any = torch._C.Future
_plain_wait, _plain_done = _Future.wait, _Future.done


class Promise:
    """A future that is completed once a condition holds.

    Args:
        ready: The condition.
        due: True as soon as the future may be completed without a wait for it.
        take: Called before the future is completed; it writes the results.
        value: Returns the future's value.
        words: The condition in words.
    """

    def __init__(
        self,
        ready: Ready,
        due: Ready,
        take: Callable[[], object],
        value: Callable[[], Any],
        words: str,
    ) -> None:
        self.ready, self.due, self.words = ready, due, words
        self._take, self._value = take, value
        self.future = torch.futures.Future[Any]()

    def keep(self) -> None:
        """Complete the future."""
        try:
            self._take()
        except Exception as error:  # noqa: BLE001 - any exception belongs to the waiter
            self.future.set_exception(error)
        else:
            self.future.set_result(self._value())


class Promises:
    """The promises of all ranks of one simulated case.

    Args:
        arrivals: The arrivals of the results.
        size: The number of ranks.
    """

    def __init__(self, arrivals: Arrivals, size: int) -> None:
        self._arrivals = arrivals
        self._open: list[list[Promise]] = [[] for _ in range(size)]

    def make(self, promise: Promise) -> Any:
        """Return the future of a new promise of the running rank."""
        if promise.due():
            promise.keep()
            return promise.future
        self._open[self._arrivals.turns.running].append(promise)
        if torch._C._current_graph_task_id() != -1:
            if torch._C._current_autograd_node() is None:
                self._keep_all()
            else:
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(self._keep_all)
        return promise.future

    def _keep_all(self) -> None:
        """Wait for all promises of the running rank, also for those made meanwhile."""
        promises = self._open[self._arrivals.turns.running]
        while promises:
            self._arrivals.wait(promises[0].ready, promises[0].words)
            promises.pop(0).keep()

    def _keep_one(self, which: Callable[[Promise], bool]) -> bool:
        """Complete the first of the running rank's futures of which something holds, if any."""
        promises = self._open[self._arrivals.turns.running]
        promise = next((each for each in promises if which(each)), None)
        if promise is None:
            return False
        promises.remove(promise)
        promise.keep()
        return True

    def wait(self, future: Any) -> None:
        """Hand on until a future is complete."""
        while not _plain_done(future):
            promises = self._open[self._arrivals.turns.running]
            words = promises[0].words if promises else "a future that nothing completes"
            self._arrivals.wait(
                lambda: any(p.ready() for p in promises) or _plain_done(future),  # noqa: B023 - called within the iteration
                words,
            )
            # Completing one may complete, or make, others.
            if not self._keep_one(lambda promise: promise.due()):
                self._keep_one(lambda promise: promise.ready())

    def poll(self) -> None:
        """Let other ranks run, and complete the futures that can be."""
        self._arrivals.look()
        while self._keep_one(lambda promise: promise.ready()):
            pass


_current: list[Promises] = []
"""The promises of the case that is being simulated, if one is."""


def begin(promises: Promises) -> None:
    """Make the futures of this process wait for these promises."""
    _Future.wait, _Future.done = _wait, _done
    _current[:] = [promises]


def end() -> None:
    """Let futures wait as usual."""
    _current.clear()
    _Future.wait, _Future.done = _plain_wait, _plain_done


def _wait(future: Any) -> Any:
    if _current:
        _current[0].wait(future)
    return _plain_wait(future)


def _done(future: Any) -> bool:
    if _current and not _plain_done(future):
        _current[0].poll()
    return bool(_plain_done(future))
