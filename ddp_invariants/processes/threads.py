"""A rank's threads as the kernel reports them in /proc: their processor time, and their waits.

[Note: waits] A thread in a futex wait without a timeout runs again only if another thread wakes
it. /proc/PID/syscall shows the system call that a thread is in, with its arguments. For a futex
wait with a timeout the pointer to its end is among them, so /proc/PID/mem holds the end itself.
"""

import contextlib
import ctypes
import os
import platform
import struct
import time
from typing import NamedTuple

IO_THREAD = "gloo_tcp_loop"
"""The name of gloo's I/O thread. It wakes every 10 ms, whether or not a message has arrived."""
_PR_SET_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)
_SIGALRM = 1 << 13
"""The signal's bit in the kernel's masks."""
_FUTEX = {"x86_64": "202", "aarch64": "98"}
"""The number of the system call on each architecture."""
_FUTEX_WAIT, _FUTEX_WAIT_BITSET = 0, 9
_FUTEX_COMMAND, _FUTEX_CLOCK_REALTIME = 0x7F, 0x100
_TIMESPEC = struct.Struct("qq")


class ThreadLook(NamedTuple):
    """A thread at one moment.

    Attributes:
        name: Its name, at most 15 characters.
        state: The kernel's letter: R runs or queues for a processor, S sleeps, D waits for a disk.
        ran: Its processor time so far, in nanoseconds.
        queued: The time that it has queued for a processor so far, in nanoseconds.
        turns: How often it has been given a processor.
        below: True if it is of a program that the process has started, or of one below that.
    """

    name: str
    state: str
    ran: int
    queued: int
    turns: int
    below: bool = False


Look = dict[int, ThreadLook]
"""A process's threads at one moment, by thread id."""


def permit_looks() -> None:
    """Let other processes of this user read this process's waits.

    A kernel with Yama lets only ancestors do so, and a pytest worker is no ancestor of its ranks.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)


def look(pid: int) -> Look | None:
    """Return the threads of a process and of those below it.

    Returns:
        The threads; empty if the process has ended, None if the kernel does not show them.
    """
    threads: Look = {}
    found = [pid]
    try:
        for process in found:
            found += _look_at(process, threads, below=process != pid)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, IndexError):
        return None
    # A kernel without CONFIG_SCHED_INFO shows zeros.
    return threads if not threads or any(thread.turns for thread in threads.values()) else None


def _look_at(pid: int, threads: Look, *, below: bool) -> list[int]:
    """Add a process's threads, and return its children.

    Raises:
        FileNotFoundError: It has ended.
    """
    children: list[int] = []
    try:
        tids = _entries(f"/proc/{pid}/task")
    except FileNotFoundError:
        if below:
            return []
        raise
    for tid in tids:
        # It has ended in the meantime.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            place = f"/proc/{pid}/task/{tid}"
            head, _, rest = _read(f"{place}/stat").rpartition(")")
            ran, queued, turns = map(int, _read(f"{place}/schedstat").split())
            if rest[1] not in "ZX":
                name = head.partition("(")[2]
                threads[tid] = ThreadLook(name, rest[1], ran, queued, turns, below)
                children += map(int, _read(f"{place}/children").split())
    return children


def waits_for_ever(pid: int, until: float, *, answered: bool) -> bool:
    """Return whether nothing but its own peers can make a process run before a time.

    That holds if each thread is in a futex wait that ends later, or is an I/O thread of gloo, and
    if no byte is on its way to the process, no child process can write to it, and no alarm is set.
    It also holds for a process that has ended.

    Args:
        pid: The process.
        until: The time, on the clock of `time.monotonic`.
        answered: True if its main thread waits for the controller's next request.
    """
    futex = _FUTEX.get(platform.machine())
    try:
        return futex is not None and (
            not _may_be_alarmed(pid)
            and not _receives(pid)
            and all(
                (tid == pid and answered) or _thread_waits(pid, tid, futex, until)
                for tid in _entries(f"/proc/{pid}/task")
            )
        )
    except (OSError, ValueError, IndexError, struct.error):
        return not os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - runs often


def _thread_waits(pid: int, tid: int, futex: str, until: float) -> bool:
    place = f"/proc/{pid}/task/{tid}"
    if _read(f"{place}/children").strip():
        return False
    if _read(f"{place}/comm").strip() == IO_THREAD:
        return True
    number, *values = _read(f"{place}/syscall").split()
    if number != futex:
        return False
    _, operation, _, timeout = (int(value, 16) for value in values[:4])
    if operation & _FUTEX_COMMAND not in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET):
        return False
    if not timeout:
        return True
    if operation & _FUTEX_COMMAND == _FUTEX_WAIT:
        return False  # It lasts a time from a start that is not known.
    clock = time.CLOCK_REALTIME if operation & _FUTEX_CLOCK_REALTIME else time.CLOCK_MONOTONIC
    return _timespec(pid, timeout) - time.clock_gettime(clock) > until - time.monotonic()


def _timespec(pid: int, address: int) -> float:
    """Return the seconds that a process's memory holds at an address."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        seconds, nanoseconds = _TIMESPEC.unpack(os.pread(memory, _TIMESPEC.size, address))
    finally:
        os.close(memory)
    return float(seconds + nanoseconds / 1e9)


def _may_be_alarmed(pid: int) -> bool:
    """Return whether a process handles SIGALRM, so that an alarm may end a wait."""
    _, _, rest = _read(f"/proc/{pid}/status").partition("SigCgt:")
    return bool(int(rest.split()[0], 16) & _SIGALRM)


def _receives(pid: int) -> bool:
    """Return whether bytes are queued in a TCP connection of a process."""
    own = set()
    for descriptor in _entries(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # Closed in the meantime.
            own.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))  # noqa: PTH115 - runs often
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # A kernel without IPv6.
            for line in _read(f"/proc/{pid}/net/{table}").splitlines()[1:]:
                columns = line.split()
                state, queues, inode = columns[3], columns[4], columns[9]
                listening = state == "0A"
                if not listening and queues != "00000000:00000000" and f"socket:[{inode}]" in own:
                    return True
    return False


def _entries(folder: str) -> list[int]:
    return [int(name) for name in os.listdir(folder)]  # noqa: PTH208 - runs often


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - runs often
        return file.read().decode(errors="replace")
