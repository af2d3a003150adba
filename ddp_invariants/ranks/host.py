"""The fork server: a process that has imported torch and only forks ranks.

Run it as `python -m ddp_invariants.ranks.host FD PARENT [MODULE]`. The host imports MODULE for all
ranks if it can ([Note: importing once]). FD is a listening Unix socket of type SOCK_SEQPACKET, so
that one message is one command. Each connection is one controller. The controller sends `fork
RANK` or `kill PID`. With `fork` it attaches the rank's socket, the pipe for its output, the file
for its stacks and the one for its last words. The host answers `forked PID` (0 if the system
refused) and later `ended PID STATUS` (negative: the signal that ended it). When a connection
closes, for whatever reason, the host kills its ranks.

[Note: orphans] A process that a rank starts may outlive the rank, in a session of its own. So the
host is a child subreaper: the kernel hands it every descendant whose parent has ended. The host
kills each such process that is no rank. It does so again and again, since each may leave children
in turn. When the controller dies the kernel sends SIGTERM to the host. The host then kills all its
descendants before it ends. If the host itself is killed, ranks and their Python forks get SIGKILL
from the kernel. Programs that they started by exec then survive; only a PID namespace could prevent
that.

Single-threaded on purpose: forking a process with threads is not safe.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from unittest import mock

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TICK = 0.25
"""Seconds between two searches for orphans, such as a daemon forked twice, of a living rank."""
HANDED = "ddp-invariants-"
"""The start of the name of a folder that hands this package to another interpreter."""
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that names the folder of torch's compiler."""
_LARGE, _MADV_COLLAPSE = 2 << 20, 25
_WORTHWHILE = 8
"""Forks after which a host puts its memory into large pages: those that a short session needs."""
_OF_A_RANK = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
"""Environment variables that each rank has for itself."""
_FAREWELL = 2.0
"""Seconds in which the host tries to kill all its descendants; after them it ends in any case."""


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel kill this process when its parent ends, also if the parent is itself killed.

    Args:
        parent: The expected parent's pid. If it has ended before the call, this process gets the
            signal at once.
        by: The signal that this process gets.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os.kill(os.getpid(), by)


def disown_forks(control: socket.socket) -> None:
    """Make a rank's Python forks end with the rank, and keep them from answering in its place.

    Args:
        control: The socket on which the rank answers.
    """
    main_thread = False

    def before() -> None:
        nonlocal main_thread
        main_thread = threading.get_native_id() == os.getpid()

    def in_child() -> None:
        control.close()
        # The kernel watches the parent's thread: a thread that forks and ends would end its
        # children.
        if main_thread:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    os.register_at_fork(before=before, after_in_child=in_child)


def prefer_batch_scheduling() -> None:
    """Ask the kernel not to let a waking thread preempt a running one.

    [Note: batch scheduling] gloo's I/O thread polls a socket whose lock the woken thread of the
    same process holds. When it preempts that thread it spins for a whole time slice (4 ms) on a
    machine with fewer cores than threads. SCHED_BATCH is allowed to any user. It makes an
    all-reduce of ten floats twice as fast at W = 2 and six times at W = 4 on two cores (medians;
    `benchmarks/scheduling.py`).
    """
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def use_large_pages() -> None:
    """Put this process's memory into pages of 2 MiB, so that its forks take less time.

    [Note: large pages] A fork copies, and the end of a rank frees, one entry of the page tables for
    each of about 50,000 pages. With large pages a fork took 1.8 ms of processor time, not 5 ms
    (medians, on a virtual machine). A kernel that cannot do it (before 6.1) changes nothing.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        maps = Path("/proc/self/maps").read_bytes()
    except OSError:
        return
    for line in maps.splitlines():
        span, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights != b"rw-p" or name not in ([], [b"[heap]"]):
            continue
        start, end = (int(place, 16) for place in span.split(b"-"))
        for place in range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE):
            advise(place, _LARGE, _MADV_COLLAPSE)


def children() -> list[int]:
    """Return the pids of this process's children.

    Adopted children are included, and so are ended ones until they are reaped.
    """
    pids: list[int] = []
    try:
        for task in os.scandir("/proc/self/task"):
            with open(  # noqa: PTH123 - runs on every tick
                f"{task.path}/children", encoding="ascii"
            ) as file:
                pids += map(int, file.read().split())
    except OSError:  # A kernel without CONFIG_PROC_CHILDREN.
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208
            if _parent(pid) == os.getpid()
        ]
    return pids


def _parent(pid: int) -> int:
    """Return the parent of a process; 0 for one that has gone."""
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
    # Gone, or a setuid program that only root may end.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _end(*_: object) -> NoReturn:
    """Kill all descendants, generation by generation, and end: the handler of SIGTERM."""
    if hasattr(os, "SCHED_OTHER"):
        # Be scheduled at once, on a busy machine too.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
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
    remove_written_modules()
    # The controller puts the folder first (`processes.hosts.environment`).
    root = Path(os.environ.get("PYTHONPATH", "").split(os.pathsep)[0])
    if root.name.startswith(HANDED):
        # The kernel tells of the end of the controller's first thread; its last one ends later.
        until = time.monotonic() + _TICK
        while os.getppid() == int(sys.argv[2]) and time.monotonic() < until:
            time.sleep(0.001)
        if os.getppid() != int(sys.argv[2]):
            remove_handed(root)
    os._exit(0)


def remove_written_modules() -> None:
    """Remove the folder into which older versions of torch write a module when they are imported.

    They would remove it at the interpreter's exit, which a host does not have.
    """
    writing = sys.modules.get("torch.distributed.nn.jit.instantiator")
    folder = getattr(writing, "_TEMP_DIR", None)
    if isinstance(folder, tempfile.TemporaryDirectory):
        with contextlib.suppress(OSError):
            folder.cleanup()


def remove_handed(root: Path) -> None:
    """Remove the folder that hands this package to another interpreter (`processes.hosts`).

    A controller that was killed cannot remove it. The folder holds one link and nothing else.
    """
    package = root / "ddp_invariants"
    if package.is_symlink() and root.name.startswith(HANDED):
        with contextlib.suppress(OSError):  # The session's other host has removed it.
            package.unlink()
            root.rmdir()


@contextlib.contextmanager
def leaving_no_folder() -> Iterator[None]:
    """Remove the empty folder that torch makes for its compiler when the compiler is imported.

    The compiler makes the folder again when it has something to store there.
    """
    given = _COMPILED in os.environ
    yield
    if not given and _COMPILED in os.environ:  # torch has set it.
        with contextlib.suppress(OSError):  # It is not empty.
            Path(os.environ[_COMPILED]).rmdir()


def import_once(module: str) -> bool:
    """Import a module for all ranks, and return whether forks of this process may serve as ranks.

    [Note: importing once] An import of a library takes up to two seconds of processor time, and
    each new rank would repeat it: half of the time of a short session. The forks of a host that has
    imported the library have it at once. They must be what a rank is that imports it. So the answer
    is False in three cases, after which the host starts anew and leaves the import to the ranks.
    The import asked for the rank, which is not known here. It started a thread or a process, which
    no fork has. It replaced names of torch, which would change the ranks of another implementation,
    too. An import that raises is left to the ranks, which report it.

    Args:
        module: The name of a module that ranks on the CPU import.
    """
    from ddp_invariants.ranks.groups.isolation import Surroundings

    before, asked, get = Surroundings(), set[object](), os._Environ.__getitem__

    def noting(variables: os._Environ[str], name: str) -> str:
        asked.add(name)
        return get(variables, name)

    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # As `take_device` does in a rank on the CPU.
    with mock.patch.object(os._Environ, "__getitem__", noting):
        try:
            importlib.import_module(module)
        except BaseException:  # noqa: BLE001 - whatever it raises, each rank will report it
            return False
    alone = len(os.listdir("/proc/self/task")) == 1 and not children()  # noqa: PTH208 - names only
    replaced = any(change.startswith("names in ") for change in before.changed())
    return alone and not replaced and not asked & _OF_A_RANK


class Host:
    """Serves connections until the listener closes."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.owners: dict[int, socket.socket] = {}
        self.forks = 0
        self.connections: set[socket.socket] = set()
        self.wake, self.child_ended = socket.socketpair()
        self.wake.settimeout(0)
        self.child_ended.settimeout(0)
        signal.set_wakeup_fd(self.child_ended.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

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
                # Skip one that was dropped because of another connection's message.
                elif source in self.connections:
                    self._command(source)

    def _accept(self) -> None:
        connection, _ = self.listener.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) != os.getuid():
            # Another user's process: an abstract socket has no file permissions.
            connection.close()
            return
        # A controller that is stopped must not stop the host of all the others.
        connection.settimeout(0)
        self.connections.add(connection)

    def _command(self, connection: socket.socket) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(connection, 4096, 4)
        except OSError:
            message, fds = b"", []
        # The implementation under test can reach the socket as well. An invalid command ends the
        # connection, never the host.
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
        # Too many processes: tell the pool that asked, and let the others' ranks live on.
        except OSError:
            self._tell(connection, "forked 0")
            return
        if pid == 0:
            self._become_rank(host, rank, control, output, stacks, words)
        self.owners[pid] = connection
        self._tell(connection, f"forked {pid}")
        self.forks += 1
        if self.forks == _WORTHWHILE:
            use_large_pages()

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
        except BaseException:  # noqa: BLE001 - whatever breaks a rank must show in its output
            traceback.print_exc()
        finally:
            # Never through the interpreter's exit: gloo's threads would abort it (SIGABRT, 1 of 24
            # exits).
            os._exit(status)

    def _kill_orphans(self) -> None:
        """Kill children that are no ranks; see [Note: orphans].

        The end of each such child makes the host call this method again.
        """
        for pid in children():
            if pid not in self.owners:
                _kill(pid)

    def _reap(self) -> None:
        ended = []
        with contextlib.suppress(ChildProcessError):
            while (pid_and_status := os.waitpid(-1, os.WNOHANG))[0]:
                ended.append(pid_and_status)
        owners = [self.owners.pop(pid, None) for pid, _ in ended]
        # First, so that a pool that learns of a rank's end finds none of its processes running.
        self._kill_orphans()
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
    variables, command, module = {**os.environ}, sys.orig_argv[:-1], "".join(sys.argv[3:])
    signal.signal(signal.SIGTERM, _end)
    die_with_parent(int(sys.argv[2]), signal.SIGTERM)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    prefer_batch_scheduling()
    # Ctrl-C is the controller's to handle; it closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # [Note: collector] torch makes half a million objects when it is imported, and nearly all of
    # them live for ever. Without the collector the start takes a fifth less time. Afterwards the
    # objects are frozen, because every full collection in every rank would walk all of them and
    # copy their pages.
    gc.disable()
    import torch

    # Imported once here, so that a fork becomes a rank within milliseconds.
    import ddp_invariants.ranks.rank  # noqa: F401 - every rank would import this
    from ddp_invariants.ranks import fingerprint
    from ddp_invariants.ranks.groups.isolation import Surroundings
    from ddp_invariants.ranks.training.warm_up import warm_up

    torch.set_num_threads(1)
    with leaving_no_folder():
        warm_up()
    fingerprint.of_this_process()
    Surroundings()  # It reads the names that each rank compares.
    if module and not import_once(module):
        os.execve(sys.executable, command, variables)
    gc.freeze()
    gc.enable()
    # The tensors of a case are many small objects. With Python's thresholds a rank would collect
    # several times a case, which takes a twentieth of its time.
    gc.set_threshold(10_000, 20, 20)
    Host(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
