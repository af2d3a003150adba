"""Processes that should have ended."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

LOOKS, PAUSE = 70, 0.01
"""Looks at processes that nobody has killed, and the seconds between two looks.

So many take a second on a quiet machine. A busy machine slows the looks as it slows the processes.
"""
DYING = 60.0
"""Seconds a killed process gets to end. It needs a processor, and a busy machine has none for it."""
_KILLED = 1 << 8
"""SIGKILL in the sets of pending signals of /proc/PID/status."""
_PF_EXITING, _PF_SIGNALED = 0x4, 0x400
"""Flags in /proc/PID/stat, as in the kernel's include/linux/sched.h."""


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return _state(pid) not in ("", "Z", "X")


def dying(pid: int) -> bool:
    """Return whether a process is certain to end, since it exits or SIGKILL awaits it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        fields = _fields(pid)
    except OSError:
        return True
    pending = [
        int(line.split()[1], 16)
        for line in lines.splitlines()
        if line.startswith(("SigPnd:", "ShdPnd:"))
    ]
    return (
        not fields
        or bool(int(fields[6]) & (_PF_EXITING | _PF_SIGNALED))
        or any(signals & _KILLED for signals in pending)
    )


def survivors(processes: Callable[[], Iterable[int]], looks: int = LOOKS) -> set[int]:
    """Return the processes that do not end.

    Args:
        processes: Returns the ids of processes that should have ended.
        looks: Looks until a process that nobody has killed counts as a survivor.
    """
    looked, until = 0, time.monotonic() + DYING
    while True:
        left = {pid for pid in processes() if alive(pid)}
        looked += not all(map(dying, left))
        if not left or looked >= looks or time.monotonic() > until:
            return left
        time.sleep(PAUSE)


def _state(pid: int) -> str:
    fields = _fields(pid)
    return fields[0] if fields else ""


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
