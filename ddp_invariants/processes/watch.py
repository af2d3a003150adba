"""The watch over ranks that have not answered yet; it ends when they are known to hang."""

import time
from collections.abc import Iterable, Mapping

from ddp_invariants.processes.load import Heartbeat
from ddp_invariants.processes.pace import Patience, Spent
from ddp_invariants.processes.process import Process
from ddp_invariants.processes.remote import RemoteProcess
from ddp_invariants.processes.stillness import INTERVAL, Looks, Reason, Silence


class Watch:
    """The watch over the ranks of one request, from the moment they have it.

    Args:
        ranks: The processes of these ranks.
        case: The number of the request.
        patience: The time that they may take; see [Note: own time] and [Note: busy].
        looks: True to look at their threads, where they run on this machine. False if a device may
            work for them.

    Attributes:
        reason: Why the ranks are known to hang; None if they are not.
    """

    def __init__(
        self,
        ranks: Mapping[int, Process | RemoteProcess],
        case: int,
        patience: Patience,
        *,
        looks: bool,
    ) -> None:
        self._ranks, self._case, self._looks, self._silence = ranks, case, looks, Silence(patience)
        self._started, self._below = time.monotonic(), list[str]()
        self._next = self._started + INTERVAL
        self._heartbeat: Heartbeat | None = None
        self.reason: Reason | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the request."""
        return time.monotonic() - self._started

    @property
    def spent(self) -> Spent:
        """The time that the request has taken so far, with the time in which the ranks queued."""
        busy = self._silence.spent(self.elapsed).busy
        return Spent(self.elapsed - busy, busy)

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return max(self._next - time.monotonic(), 0.0)

    def hasten(self, grace: float) -> None:
        """Allow only some more seconds from now on."""
        self._silence.hasten(self.elapsed, grace)

    def ends(self, silent: Iterable[int]) -> bool:
        """Return whether silent ranks are known to hang; look at them if it is time to."""
        if time.monotonic() < self._next:
            return False
        silent = set(silent)
        self._beat()
        self._looks = self._looks and self._look()
        self._next = time.monotonic() + INTERVAL
        if self._looks and self._waits_for_ever(silent):
            self.reason = "waits for ever"
        else:
            self.reason = self._silence.over(self.elapsed)
        return self.reason is not None

    def seen(self, silent: Iterable[int]) -> str:
        """Return in words how the silent ranks are known to hang; empty if nobody could look."""
        if not self._looks or self.reason is None:
            return ""
        if self.reason == "waits for ever":
            return "every thread waits, and none can wake another"
        run = self._silence.longest_run(set(silent))
        words = f"the busiest thread ran for {run:.1f} s"
        if self._below:
            words += (
                f"; programs that ranks started have not ended: {', '.join(self._below)} "
                f"(waited {self._silence.waited_below:.1f} s for them)"
            )
        return words

    @property
    def overload(self) -> str:
        """The overload of this machine in words, where it may be why ranks were silent too long."""
        if self.reason != "silent" or self._heartbeat is None:
            return ""
        return self._heartbeat.load().excess

    def _beat(self) -> None:
        """Note how late this look is; most cases end before the first."""
        if self._heartbeat is None:
            self._heartbeat = Heartbeat()
        self._heartbeat.beat(time.monotonic() - self._next)

    def _look(self) -> bool:
        """Look at the threads of all ranks, and return whether the kernel shows them."""
        moment, ranks = self.elapsed, {}
        for rank, process in self._ranks.items():
            look = process.look()
            if look is None:
                self._silence = Silence(self._silence.patience)
                return False
            ranks[rank] = look
        issued = sum(process.issued(self._case) for process in self._ranks.values())
        self._silence.see(Looks(moment, ranks, issued))
        below = (thread.name for look in ranks.values() for thread in look.values() if thread.below)
        self._below = sorted(set(below))
        return True

    def _waits_for_ever(self, silent: set[int]) -> bool:
        if not self._silence.is_still:
            return False
        until = (
            time.monotonic() + self._silence.patience.idle - self._silence.spent(self.elapsed).idle
        )
        if not all(
            process.waits_for_ever(until, answered=rank not in silent)
            for rank, process in self._ranks.items()
        ):
            self._silence.forget()
            return False
        # A thread may have run between the last look and the questions.
        return self._look() and self._silence.is_still
