"""The turns of simulated ranks: exactly one runs, until it would wait.

Standard library only.
"""

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import _current_frames
from typing import NoReturn

from ddp_invariants.ranks.groups.simulated.order import Order
from ddp_invariants.records.trace import ENDLESS

Ready = Callable[[], bool]


class NotSimulated(BaseException):
    """The implementation does something that only real processes can show."""


@dataclass
class _Seat:
    """One rank's place among the turns.

    Attributes:
        go: Released when the rank may run.
        until: The condition it waits for; None if it can run.
        waits_for: The same in words.
        wakes: The virtual time until which it sleeps.
        thread: The identity of its thread; 0 before it began.
        ended: True after its last action.
    """

    go: threading.Lock = field(default_factory=threading.Lock)
    until: Ready | None = None
    waits_for: str = ""
    wakes: float = 0.0
    thread: int = 0
    ended: bool = False


class Turns:
    """The turns of the ranks of one simulated case.

    Args:
        size: The number of ranks.
        order: Chooses the rank that runs next.
        swap: Called with the rank that stops and the rank that goes on, before it goes on. Either
            is -1 at the start and at the end.

    Attributes:
        running: The rank that runs; -1 before the first and after the last.
        stuck: The object that each rank waits for, if no rank can run; otherwise empty.
        refused: Why the case cannot be simulated; empty if it can.
        for_good: True if no case of the implementation can be, for that reason.
    """

    def __init__(self, size: int, order: Order, swap: Callable[[int, int], None]) -> None:
        self._seats = [_Seat() for _ in range(size)]
        for seat in self._seats:
            seat.go.acquire()
        self._order, self._swap = order, swap
        self._over = threading.Lock()
        self._over.acquire()
        self._now = 0.0
        self.running = -1
        self.stuck: dict[int, str] = {}
        self.refused, self.for_good = "", True

    # The side of the thread that runs the simulation.

    def start(self) -> None:
        """Let the first rank run; each rank's thread must be about to call `begin`."""
        self._hand_on()

    def finished(self, seconds: float) -> bool:
        """Wait until all ranks have ended, or none can run; False if neither happens in time."""
        return self._over.acquire(timeout=seconds)

    def stacks(self) -> dict[int, str]:
        """Return the stack of each rank that has not ended."""
        frames = _current_frames()
        return {
            rank: "".join(traceback.format_stack(frames[seat.thread]))
            for rank, seat in enumerate(self._seats)
            if not seat.ended and seat.thread in frames
        }

    def unended(self) -> dict[int, str]:
        """Return the ranks that have not ended, with what they wait for, in words."""
        return {
            rank: ENDLESS if rank == self.running else seat.waits_for
            for rank, seat in enumerate(self._seats)
            if not seat.ended
        }

    # The side of the ranks.

    def begin(self, rank: int) -> None:
        """Wait for this rank's first turn; its own thread calls this first."""
        seat = self._seats[rank]
        seat.thread = threading.get_ident()
        seat.go.acquire()

    def end(self, rank: int) -> None:
        """End this rank; its thread does nothing more."""
        self._seats[rank].ended = True
        self._hand_on()

    def wait(self, until: Ready, what: str) -> None:
        """Let other ranks run until a condition holds.

        Args:
            until: The condition; only other ranks' actions can change it.
            what: The condition in words, for a report of a deadlock.

        Raises:
            NotSimulated: A thread calls this that is no rank's.
        """
        self._require_rank()
        if not until():
            self._pause(until, what)

    def pass_on(self) -> None:
        """Let the order decide whether another rank runs first."""
        self._require_rank()
        if self._order.preempts(self.running):
            self._pause(None, "")

    def give_way(self) -> None:
        """Let another rank run first, if any can: this rank polls for something."""
        self.sleep(1e-6)

    def sleep(self, seconds: float) -> None:
        """Let other ranks run for some virtual seconds, which pass when all ranks wait."""
        self._require_rank()
        seat = self._seats[self.running]
        seat.wakes = self._now + seconds
        self._pause(lambda: self._now >= seat.wakes, "a delay")
        seat.wakes = 0.0

    def refuse(self, reason: str, *, for_good: bool = True) -> NoReturn:
        """End the simulation: only real processes can show what comes next.

        Args:
            reason: The reason.
            for_good: True if it holds for all cases of the implementation, not only for this case.

        Raises:
            NotSimulated: Always.
        """
        if not self.refused:
            self.refused, self.for_good = reason, for_good
        raise NotSimulated(self.refused)

    def _require_rank(self) -> None:
        if self._seats[self.running].thread != threading.get_ident():
            self.refuse("it communicates from threads of its own")

    def _pause(self, until: Ready | None, what: str) -> None:
        seat = self._seats[self.running]
        seat.until, seat.waits_for = until, what
        if self._hand_on() is not seat:
            seat.go.acquire()
        seat.until = None

    def _hand_on(self) -> _Seat | None:
        """Choose the next rank, and let it run; return its seat if it is already running."""
        before, chosen = self.running, self._next()
        if chosen is None:
            self._swap(before, -1)
            self.running = -1
            if any(not seat.ended for seat in self._seats):
                self.stuck = self.unended()
            self._over.release()
            return None
        seat = self._seats[chosen]
        if chosen == before:
            return seat
        self._swap(before, chosen)
        self.running = chosen
        seat.go.release()
        return None

    def _next(self) -> int | None:
        """Return the rank to run next; None if none can."""
        ready = self._ready()
        if not ready:
            sleeping = [seat.wakes for seat in self._seats if seat.wakes > self._now and seat.until]
            if not sleeping:
                return None
            self._now = min(sleeping)
            ready = self._ready()
        return ready[0] if len(ready) == 1 else self._order.chosen(ready)

    def _ready(self) -> list[int]:
        return [
            rank
            for rank, seat in enumerate(self._seats)
            if not seat.ended and (seat.until is None or seat.until())
        ]
