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

[Note: busy] A rank that imports, compiles or waits for a compiler is busy and does not hang. So the
deadline is a time in which no thread of any rank runs, nor one of a program that a rank has started.
The time in which one runs has a limit of its own, which ends a loop. A thread that polls now and
then is busy only for the time that it has a processor. This limit starts anew with each collective
that a rank issues: a run of hundreds of parameters and dozens of steps is long, but goes on. A loop
that issues collectives without end meets a multiple of the limit.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from ddp_invariants.processes.pace import Patience, Spent
from ddp_invariants.processes.threads import IO_THREAD, Look, ThreadLook

INTERVAL = 0.1
"""Seconds between two looks. Most cases end before the first."""
STILL = 0.29
"""Seconds over which no thread may run before a deadlock is assumed."""
TURNS = 8
"""The number of times that each I/O thread must run meanwhile. A message passes at most three of them."""
ISSUING = 5
"""Factor on the busy time that ends a request in which ranks still issue collectives."""
PATIENT = 10
"""Factor on the patience that ends a request in any case, however busy the machine is."""

_NEW = ThreadLook("", "S", 0, 0, 0)

Reason = Literal["waits for ever", "runs", "silent"]


class Looks(NamedTuple):
    """All ranks of a request at one moment.

    Attributes:
        moment: Seconds since the request.
        ranks: Each rank's threads.
        issued: The number of collectives that all ranks have issued.
    """

    moment: float
    ranks: Mapping[int, Look]
    issued: int = 0

    def threads(self) -> dict[tuple[int, int], ThreadLook]:
        """Return all threads by rank and thread id."""
        return {
            (rank, tid): thread for rank, look in self.ranks.items() for tid, thread in look.items()
        }


class Silence:
    """The time that a request takes, by the ranks' own account.

    Args:
        patience: The time that it may take.

    Attributes:
        patience: The same; less idle time once a rank has raised or died.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience, self._whole = patience, max(patience.idle, patience.busy)
        self._queued, self._starved, self._hastened = 0.0, False, False
        self._busy, self._below, self._busy_before = 0.0, 0.0, 0.0
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
        self._add_busy(changes, looks.moment - last.moment)
        if looks.issued != last.issued:
            self._busy_before = self._busy
        if active or now.keys() != before.keys() or any(t.state != "S" for t, _ in changes):
            self._still_since = looks

    def _add_busy(self, changes: list[tuple[ThreadLook, ThreadLook]], seconds: float) -> None:
        """Add the time between two looks in which a thread had a processor, or waited for a disk."""
        own, below = (
            max(
                (
                    seconds if thread.state == "D" else (thread.ran - earlier.ran) / 1e9
                    for thread, earlier in changes
                    if thread.below is wanted
                ),
                default=0.0,
            )
            for wanted in (False, True)
        )
        if own >= below:
            self._busy += min(own, seconds)
        else:
            self._below += min(below, seconds)

    def spent(self, elapsed: float) -> Spent:
        """Return the seconds that have passed, less those in which the ranks queued to run."""
        busy = self._busy + self._below
        return Spent(max(elapsed - self._queued - busy, 0.0), busy)

    @property
    def waited_below(self) -> float:
        """Seconds in which only programs ran that a rank had started."""
        return self._below

    def hasten(self, elapsed: float, grace: float) -> None:
        """Allow only some more seconds of idle time from now on; only once."""
        if not self._hastened:
            idle = min(self.patience.idle, self.spent(elapsed).idle + grace)
            self.patience = self.patience._replace(idle=idle)
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

    def over(self, elapsed: float) -> Reason | None:
        """Return why a request has taken too long after some seconds; None if it has not."""
        patience = self.patience
        if self._last is None:  # Nobody could look, so nobody knows which time was idle.
            usual = patience.idle if self._hastened else max(patience.idle, patience.busy)
            return "silent" if elapsed >= usual else None
        since_issued = self._busy - self._busy_before
        if (
            since_issued >= patience.busy
            or self._busy >= ISSUING * patience.busy
            or self._below >= patience.below
        ):
            return "runs"
        if self.spent(elapsed).idle >= patience.idle and not self._starved:
            return "silent"
        return "silent" if elapsed >= PATIENT * (self._whole + self._below) else None

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
