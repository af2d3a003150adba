"""The load of this machine: how long its processes have to wait for a processor.

Deadlines do not count the time in which ranks queue for a processor ([Note: own time] in
`stillness.py`). A machine can be so busy that something else runs out of time: a timeout of gloo, or
of the implementation. Then the report names the machine instead of blaming chance.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

CROWDED = 4.0
"""Threads for each processor, from which on a machine is overloaded. A session alone has one or two."""
STOLEN = 0.25
"""Share of the processors' time, from which on other virtual machines take too much of it."""
LATE = 0.5
"""Seconds of delay, from which on a process is woken too late. An idle machine needs milliseconds."""
_BEATS, _PAUSE = 10, 0.05
_STEAL = 7
"""The column of /proc/stat with the time that the hypervisor gave to other machines."""


class Load(NamedTuple):
    """The load of this machine over some time.

    Attributes:
        running: Threads that run or queue for a processor, for each processor.
        stolen: The share of the processors' time that other virtual machines took.
        late: The longest delay with which a waiting process was woken, in seconds.
    """

    running: float
    stolen: float
    late: float

    @property
    def is_over(self) -> bool:
        """True if the machine has more work than it can do in time."""
        return self.running >= CROWDED or self.stolen >= STOLEN or self.late >= LATE

    @property
    def words(self) -> str:
        """The load in words."""
        return (
            f"{self.running:.1f} threads for each processor, {self.stolen:.0%} of their time taken by "
            f"other virtual machines, a process woken {self.late:.1f} s late"
        )

    @property
    def excess(self) -> str:
        """The overload in words; empty if there is none."""
        return f"the machine is overloaded: {self.words}" if self.is_over else ""


IDLE = Load(0.0, 0.0, 0.0)


class Heartbeat:
    """The moments at which a process wanted to be woken, and how it was."""

    def __init__(self) -> None:
        self._before, self._running, self._late = _processor_time(), list[float](), 0.0

    def beat(self, late: float) -> None:
        """Take account of a moment.

        Args:
            late: Seconds after which the process was woken.
        """
        self._late = max(self._late, late)
        self._running.append(_running())

    def load(self) -> Load:
        """Return the load since the start."""
        (all_before, stolen_before), (all_now, stolen_now) = self._before, _processor_time()
        return Load(
            sum(self._running) / max(len(self._running), 1),
            (stolen_now - stolen_before) / max(all_now - all_before, 1),
            self._late,
        )


def measure() -> Load:
    """Measure the load for half a second."""
    heartbeat = Heartbeat()
    for _ in range(_BEATS):
        planned = time.monotonic() + _PAUSE
        time.sleep(_PAUSE)
        heartbeat.beat(time.monotonic() - planned)
    return heartbeat.load()


def _running() -> float:
    """Return the threads that want a processor, for each processor; 0 if the kernel does not say."""
    with suppress(OSError, ValueError, IndexError):
        running = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
        return (int(running) - 1) / (os.cpu_count() or 1)  # This thread runs, too.
    return 0.0


def _processor_time() -> tuple[int, int]:
    """Return the time of all processors so far, and the stolen part of it, in the kernel's ticks."""
    with suppress(OSError, ValueError, IndexError):
        with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123 - only its first line
            ticks = [int(column) for column in file.readline().split()[1:]]
        return sum(ticks[: _STEAL + 1]), ticks[_STEAL]
    return 0, 0
