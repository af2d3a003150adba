"""The fork server: a process that has imported torch and does nothing but fork ranks.

Run as `python -m ddp_invariants.ranks.host FD PARENT`, FD being a listening Unix socket of
type SOCK_SEQPACKET, so that one message is one command. Each connection is one controller:
it sends `fork RANK` with the rank's socket, the pipe for its output, the file for its stacks and
the one for its last words attached, or `kill PID`, and is told `forked PID` (0 where the system
refused) and `ended PID STATUS` (negative: the signal that ended it). When a connection closes, for
whatever reason, its ranks are killed.

[Note: orphans] What a rank starts may outlive it, in a session of its own. So the host is a child
subreaper: the kernel hands it every descendant whose parent has ended, and it kills what is handed
over as no rank, again and again, since each may leave children in turn. When the controller dies
the kernel sends SIGTERM, upon which the host kills all below it before it ends. Ranks, and what
they fork through Python, get SIGKILL from the kernel should the host be killed itself; what they
have started by exec then survives, as nothing short of a PID namespace could prevent.

Single-threaded on purpose: forking a process with threads is not safe.
"""

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TICK = 0.25
"""Seconds between two looks for what was handed over while its rank lives on: a daemon forked twice, say."""
_FAREWELL = 2.0
"""Seconds the host may take to kill everything below it before it ends all the same."""


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel kill this process when its parent ends, also if that is itself killed.

    Args:
        parent: The expected parent's pid; if it has ended before the call, this process ends at
            once.
        by: The signal it gets.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def disown_forks(control: socket.socket) -> None:
    """Have what a rank forks through Python end with it, and keep it from answering in the rank's place.

    Args:
        control: What the rank answers on.
    """
    main_thread = False

    def before() -> None:
        nonlocal main_thread
        main_thread = threading.get_native_id() == os.getpid()

    def in_child() -> None:
        control.close()
        if (
            main_thread
        ):  # The kernel means the parent's thread: one that forks and ends would end its children.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(before=before, after_in_child=in_child)


def prefer_batch_scheduling() -> None:
    """Ask the kernel not to let a waking thread preempt a running one.

    [Note: batch scheduling] gloo's I/O thread polls a socket whose lock the woken thread of the
    same process holds; when it preempts that thread it spins for a whole time slice (4 ms) on a
    machine with fewer cores than threads. SCHED_BATCH is allowed to any user and makes an
    all-reduce of ten floats twice as fast at W = 2 and six times at W = 4 on two cores (medians;
    `benchmarks/scheduling.py`).
    """
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def children() -> list[int]:
    """The pids of this process's children, adopted ones included, ended ones until they are reaped."""
    found: list[int] = []
    try:
        for task in os.scandir("/proc/self/task"):
            with open(f"{task.path}/children", encoding="ascii") as file:  # noqa: PTH123 - on a timer's way, see _TICK
                found += map(int, file.read().split())
    except OSError:  # A kernel without CONFIG_PROC_CHILDREN.
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208
            if _parent(pid) == os.getpid()
        ]
    return found


def _parent(pid: int) -> int:
    """Parent of a process; 0 for one that has gone."""
    try:
        return int(
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[1]
        )
    except (OSError, IndexError):
        return 0


def _kill(pid: int) -> None:
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # Gone, or a setuid program that only root may end.
        os.kill(pid, signal.SIGKILL)


def _end(*_: object) -> NoReturn:
    """Kill all descendants, generation by generation, and end: the handler of SIGTERM."""
    if hasattr(os, "SCHED_OTHER"):
        os.sched_setscheduler(
            0, os.SCHED_OTHER, os.sched_param(0)
        )  # Of a busy machine, too, at once.
    until = time.monotonic() + _FAREWELL
    while time.monotonic() < until:
        below = children()
        for pid in below:
            _kill(pid)
        if not below:
            break
        time.sleep(0.001)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


class Host:
    """Serves connections until the listener closes."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.owners: dict[int, socket.socket] = {}
        self.connections: set[socket.socket] = set()
        self.wake, self.child_ended = socket.socketpair()
        self.wake.settimeout(0)
        self.child_ended.settimeout(0)
        signal.set_wakeup_fd(self.child_ended.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, _end)

    def serve(self) -> NoReturn:
        """Accept, fork, kill and reap, for ever."""
        while True:
            ready, _, _ = select.select(
                [self.listener, self.wake, *self.connections],
                [],
                [],
                _TICK if self.owners else None,
            )
            if not ready:
                self._kill_orphans()
            for source in ready:
                if source is self.listener:
                    self._accept()
                elif source is self.wake:
                    self.wake.recv(4096)
                    self._reap()
                elif source in self.connections:  # Not dropped on behalf of another one's message.
                    self._command(source)

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) != os.getuid():
            connection.close()  # Another user's process: an abstract socket has no file permissions.
            return
        connection.settimeout(
            0
        )  # A controller that is stopped must not stop the host of all the others.
        self.connections.add(connection)

    def _command(self, connection: socket.socket) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(connection, 4096, 4)
        except OSError:
            message, fds = b"", []
        # What is on trial can reach the socket as well: what is no command ends the connection,
        # never the host.
        verb, _, argument = message.decode(errors="replace").partition(" ")
        if argument.isdecimal() and (verb, len(fds)) == ("kill", 0):
            if self.owners.get(int(argument)) is connection:
                _kill(int(argument))
        elif argument.isdecimal() and (verb, len(fds)) == ("fork", 4):
            self._fork(connection, int(argument), *fds)
        else:
            self._drop(connection)
        for descriptor in fds:
            os.close(descriptor)

    def _fork(
        self,
        connection: socket.socket,
        rank: int,
        control: int,
        output: int,
        stacks: int,
        words: int,
    ) -> None:
        host = os.getpid()
        try:
            pid = os.fork()
        except (
            OSError
        ):  # Too many processes: the pool that asked is told, and the others' ranks live on.
            self._tell(connection, "forked 0")
            return
        if pid == 0:
            self._become_rank(host, rank, control, output, stacks, words)
        self.owners[pid] = connection
        self._tell(connection, f"forked {pid}")

    def _become_rank(
        self, host: int, rank: int, control: int, output: int, stacks: int, words: int
    ) -> NoReturn:
        status = 1
        try:
            die_with_parent(host)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for inherited in (self.listener, self.wake, self.child_ended, *self.connections):
                inherited.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            from ddp_invariants.ranks.rank import serve

            connection = socket.socket(fileno=control)
            disown_forks(connection)
            status = serve(connection, rank, stacks, words)
        except BaseException:  # noqa: BLE001 - whatever breaks a rank is to be seen in what it printed
            traceback.print_exc()
        finally:
            # Never through the interpreter's exit: gloo's threads would abort it (SIGABRT, 1 of 24
            # exits).
            os._exit(status)

    def _kill_orphans(self) -> None:
        """Kill children that are no ranks; see [Note: orphans]. Each one's end brings the host here again."""
        for pid in children():
            if pid not in self.owners:
                _kill(pid)

    def _reap(self) -> None:
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended.append(found)
        owners = [self.owners.pop(pid, None) for pid, _ in ended]
        self._kill_orphans()  # First, so that who is told that a rank has ended finds nothing of it running.
        for (pid, status), owner in zip(ended, owners, strict=True):
            if owner in self.connections:
                self._tell(owner, f"ended {pid} {os.waitstatus_to_exitcode(status)}")

    def _tell(self, connection: socket.socket, line: str) -> None:
        try:
            connection.sendall(line.encode())
        except OSError:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self.connections.discard(connection)
        connection.close()
        for pid, owner in self.owners.items():
            if owner is connection:
                _kill(pid)


def main() -> NoReturn:
    """Become a host on the listening socket whose descriptor is the first argument."""
    die_with_parent(int(sys.argv[2]), signal.SIGTERM)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    prefer_batch_scheduling()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is the controller's to handle; it closes the connection.
    import torch

    # Imported once here, so that a fork is a rank within milliseconds.
    import ddp_invariants.ranks.rank  # noqa: F401 - what every rank would import
    from ddp_invariants.ranks.training.warm_up import warm_up

    torch.set_num_threads(1)
    warm_up()
    # What is imported by now lives for ever: without this every full collection in every rank walks
    # all of torch's objects, and copies the pages they lie on.
    gc.collect()
    gc.freeze()
    Host(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
