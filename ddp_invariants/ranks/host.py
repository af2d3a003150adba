"""The fork server: a process that has imported torch and does nothing but fork ranks.

Run as `python -m ddp_invariants.ranks.host FD PARENT`, FD being a listening Unix socket of
type SOCK_SEQPACKET, so that one message is one command. Each connection is one controller:
it sends `fork RANK` with the rank's socket and output file attached, or `kill PID`, and is
told `forked PID` and `ended PID STATUS` (negative: the signal that ended it). When a
connection closes, for whatever reason, its ranks are killed; when the parent dies, the
kernel kills this process, and the ranks with it.

Single-threaded on purpose: forking a process with threads is not safe.
"""

import ctypes
import gc
import os
import select
import signal
import socket
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, also if that is itself killed.

    Args:
        parent: The expected parent's pid; if it has ended before the call, this process ends at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def prefer_batch_scheduling() -> None:
    """Ask the kernel not to let a waking thread preempt a running one.

    [Note: batch scheduling] gloo's I/O thread polls a socket whose lock the woken thread of the same process holds;
    when it preempts that thread it spins for a whole time slice (4 ms) on a machine with fewer cores than threads.
    SCHED_BATCH is allowed to any user and makes an all-reduce of ten floats twice as fast at W = 2 and six times at
    W = 4 on two cores (medians; `benchmarks/scheduling.py`).
    """
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


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

    def serve(self) -> NoReturn:
        """Accept, fork, kill and reap, for ever."""
        while True:
            ready, _, _ = select.select([self.listener, self.wake, *self.connections], [], [])
            for source in ready:
                if source is self.listener:
                    self._accept()
                elif source is self.wake:
                    self.wake.recv(4096)
                    self._reap()
                else:
                    self._command(source)

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) != os.getuid():
            connection.close()  # Another user's process: an abstract socket has no file permissions.
            return
        self.connections.add(connection)

    def _command(self, connection: socket.socket) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(connection, 4096, 2)
        except OSError:
            message, fds = b"", []
        if not message:
            self._drop(connection)
            return
        verb, argument = message.decode().split()
        if verb == "kill":
            self._kill(int(argument))
        elif verb == "fork":
            self._fork(connection, int(argument), *fds)

    def _fork(self, connection: socket.socket, rank: int, control: int, output: int) -> None:
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_rank(host, rank, control, output)
        os.close(control)
        os.close(output)
        self.owners[pid] = connection
        self._tell(connection, f"forked {pid}")

    def _become_rank(self, host: int, rank: int, control: int, output: int) -> NoReturn:
        status = 1
        try:
            die_with_parent(host)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self.listener, self.wake, self.child_ended, *self.connections):
                inherited.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            from ddp_invariants.ranks.rank import serve

            status = serve(socket.socket(fileno=control), rank)
        finally:
            # Never through the interpreter's exit: gloo's threads would abort it (SIGABRT, 1 of 24 exits).
            os._exit(status)

    def _kill(self, pid: int) -> None:
        if pid in self.owners:
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            owner = self.owners.pop(pid, None)
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
                os.kill(pid, signal.SIGKILL)


def main() -> NoReturn:
    """Become a host on the listening socket whose descriptor is the first argument."""
    die_with_parent(int(sys.argv[2]))
    prefer_batch_scheduling()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's to handle; it closes the connection.
    import torch

    # Imported once here, so that a fork is a rank within milliseconds.
    from ddp_invariants.ranks.training import warm_up

    torch.set_num_threads(1)
    warm_up()
    # What is imported by now lives for ever: without this every full collection in every rank walks all of torch's
    # objects, and copies the pages they lie on.
    gc.collect()
    gc.freeze()
    Host(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
