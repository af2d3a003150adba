"""The memory of a rank's process, and the bounds of what it may take."""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ddp_invariants.ranks.training.recorder import MEMORY

_RESIDENT, _DATA = 1, 5
"""Columns of /proc/self/statm."""
_CAP_SYS_RESOURCE = 24
"""The capability with which a process may raise its hard limits; root often has it."""
_PR_CAPBSET_DROP = 24
_VERSION_3 = 0x20080522
"""Of the capability calls; it has two words for each set."""


def bound_memory() -> None:
    """Limit this process's memory for good to its present size plus `recorder.MEMORY`.

    A larger demand raises here and takes no other process's memory. The limit is RLIMIT_DATA rather
    than RLIMIT_AS, which also counts mapped libraries and addresses that are only reserved. The
    limit is a hard one, because the implementation under test could lift a soft one.
    """
    most = _bytes(_DATA) + MEMORY
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    drop_capability(_CAP_SYS_RESOURCE)


class Exceeded(BaseException):
    """The processor time of `bounded` is used up. No `except Exception` catches it."""


def _forked() -> int:
    """Fork as `os.fork` does, without its warning that other threads may hold locks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def ends_in_time(call: Callable[[], object], seconds: int) -> bool:
    """Return whether a call ends within some seconds of processor time, as a forked child shows.

    A loop in C ends at no signal that Python handles, but the child can be killed. What the call
    returns or raises is lost.
    """
    child = _forked()
    if not child:
        try:
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            call()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def answered(call: Callable[[], Any], seconds: float) -> Any:
    """Return what a call returns in a forked child, as plain data; None if it returns nothing.

    The call may change its process, end it or hang: nothing of that is left in this process.

    Args:
        call: The call; JSON must be able to hold what it returns.
        seconds: Seconds after which the child is killed.
    """
    read, write = os.pipe()
    child = _forked()
    if not child:
        try:
            os.setpgid(0, 0)
            if grandchild := os.fork():  # The call may kill its parent, which is this child.
                os.waitpid(grandchild, 0)
            else:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                for stream in (1, 2):
                    os.dup2(nowhere, stream)
                os.write(write, json.dumps(call()).encode())
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], seconds)
    text = os.read(read, 1 << 16) if ready else b""
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(text) if text else None


@contextlib.contextmanager
def bounded(seconds: float, memory: int) -> Iterator[None]:
    """Bound what the code inside takes; it runs in the main thread.

    Args:
        seconds: Processor time in Python. The machine's load does not count.
        memory: Bytes beyond those that the process has; a larger demand raises.

    Raises:
        Exceeded: The time is used up.
    """

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise Exceeded

    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = _bytes(_DATA) + memory
    if before[1] != resource.RLIM_INFINITY:
        most = min(most, before[1])
    handler = signal.signal(signal.SIGVTALRM, end)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_DATA, before)
        signal.signal(signal.SIGVTALRM, handler)


def drop_capability(number: int) -> None:
    """Give up a capability, also for programs that this process starts.

    Args:
        number: The capability's number, below 32.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # Refused where it is not held: nothing to drop.
    header, sets = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    with contextlib.suppress(AttributeError):  # A libc without these calls.
        if libc.capget(header, sets) == 0:
            for place in range(3):  # Effective, permitted, inheritable: the first word of each.
                sets[place] &= ~(1 << number)
            libc.capset(header, sets)


def resident() -> int:
    """Return the bytes of memory that this process occupies."""
    return _bytes(_RESIDENT)


def _bytes(column: int) -> int:
    """Return a column of this process's memory, which the kernel counts in pages."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[column]
    return int(pages) * resource.getpagesize()
