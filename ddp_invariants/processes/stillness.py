"""The judgement whether silent ranks hang, from what the kernel shows of their threads.

[Note: stillness] Ranks that only wait for one another never run again. A deadlock is known as soon
as every thread waits without end. A single look cannot prove that, since ranks cannot be looked at
at the same instant. So no thread may have run over several looks. gloo's I/O threads are
the exception, since they wake every 10 ms in any case. Each of them must have run several times: it
has then handled every message that had arrived, and would have woken a thread that waits for it.
A thread that an overloaded machine starves is in state R, not asleep.

[Note: own time] The deadline is no wall-clock time, or an overloaded machine would accuse right
implementations. The time in which threads queue for a processor does not count. The queueing of
I/O threads counts only while other threads run, since I/O threads of ranks that sleep queue, too.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ddp_invariants.processes.threads import IO_THREAD, Look, ThreadLook

INTERVAL = 0.1
"""Seconds between two looks. Most cases end before the first."""
STILL = 0.29
"""Seconds over which no thread may run before a deadlock is assumed."""
TURNS = 8
"""The number of times that each I/O thread must run meanwhile. A message passes at most three of them."""
PATIENT = 10
"""Factor on the deadline that ends a request in any case, however busy the machine is."""

_NEW = ThreadLook("", "S", 0, 0, 0)

Reason = Literal["waits for ever", "runs", "silent"]


class Looks(NamedTuple):
    """All ranks of a request at one moment.

    Attributes:
        moment: Seconds since the request.
        ranks: Each rank's threads.
    """

    moment: float
    ranks: Mapping[int, Look]

    def threads(self) -> dict[tuple[int, int], ThreadLook]:
        """Return all threads by rank and thread id."""
        return {
            (rank, tid): thread for rank, look in self.ranks.items() for tid, thread in look.items()
        }


class Silence:
    """The time that a request takes, by the ranks' own account.

    Args:
        patience: Seconds of their own time that the ranks may take.

    Attributes:
        patience: The same; less once a rank has raised or died.
    """

    def __init__(self, patience: float) -> None:
        self.patience, self._whole = patience, patience
        self._queued, self._starved, self._hastened = 0.0, False, False
        self._first: Looks | None = None
        self._last: Looks | None = None
        self._still_since: Looks | None = None

    def see(self, looks: Looks) -> None:
        """Take account of a look at all ranks."""
        last, self._last = self._last, looks
        if last is None:
            self._first = self._still_since = looks
            self._queued = looks.moment  # Nobody knows how the time before was spent.
            return
        before, now = last.threads(), looks.threads()
        changes = [
            (thread, before.get(place, _NEW))
            for place, thread in now.items()
            if thread.name != IO_THREAD
        ]
        self._starved = any(
            thread.state == "R" and thread[2:] == earlier[2:] for thread, earlier in changes
        )
        active = any(thread.turns != earlier.turns for thread, earlier in changes)
        if active:
            self._queued += (
                sum(thread.queued for thread in now.values())
                - sum(before.get(place, _NEW).queued for place in now)
            ) / 1e9
        if active or now.keys() != before.keys() or any(t.state != "S" for t, _ in changes):
            self._still_since = looks

    def own_time(self, elapsed: float) -> float:
        """Return the seconds that have passed, less those in which the ranks queued to run."""
        return max(elapsed - self._queued, 0.0)

    def hasten(self, elapsed: float, grace: float) -> None:
        """Allow only some more seconds of the ranks' own time from now on; only once."""
        if not self._hastened:
            self.patience = min(self.patience, self.own_time(elapsed) + grace)
            self._hastened = True

    def forget(self) -> None:
        """Wait for new looks before the threads are called still."""
        self._still_since = self._last

    @property
    def is_still(self) -> bool:
        """True if no thread has run for some looks, and all messages sent have been handled."""
        since, last = self._still_since, self._last
        if since is None or last is None or last.moment - since.moment < STILL:
            return False
        before = since.threads()
        return all(
            thread.turns - before[place].turns >= TURNS
            for place, thread in last.threads().items()
            if thread.name == IO_THREAD
        )

    def over(self, elapsed: float, silent: set[int]) -> Reason | None:
        """Return why the request has taken too long; None if it has not.

        Args:
            elapsed: Seconds since the request.
            silent: The ranks that have not answered.
        """
        if elapsed < self.patience:
            return None
        if self.longest_run(silent) >= self._whole:
            return "runs"
        if self.own_time(elapsed) >= self.patience and not self._starved:
            return "silent"
        return "silent" if elapsed >= PATIENT * self._whole else None

    def longest_run(self, silent: set[int]) -> float:
        """Return the most seconds of processor time that a silent rank's thread has used."""
        if self._first is None or self._last is None:
            return 0.0
        before = self._first.threads()
        return max(
            (
                (thread.ran - before.get((rank, tid), _NEW).ran) / 1e9
                for (rank, tid), thread in self._last.threads().items()
                if rank in silent
            ),
            default=0.0,
        )
