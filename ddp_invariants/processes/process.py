"""A rank's process on this machine, as a pool sees it, and the host that forks it."""

import contextlib
import fcntl
import os
import re
import socket
import time
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Self

from ddp_invariants.errors import HarnessError, HostLost
from ddp_invariants.implementation.spec import Ddp, Sampler
from ddp_invariants.processes import load, threads
from ddp_invariants.processes.hosts import PATIENCE, STARTING
from ddp_invariants.records.trace import WORDS_SIZE, LastCalls, LastWords

_OUTPUT_KEPT = 8000
"""Bytes kept of a rank's printed output, and of its stacks."""
_EXTENSIONS = re.compile(rb"^Extension modules: .*$", re.MULTILINE)
"""The names of compiled modules, which Python writes below the stacks of a crash."""
_PIPE = 1 << 16
_IN_FLIGHT = 1 << 20
"""Bytes of an answer that the kernel takes before the pool reads them; it may allow fewer."""
_GONE = (
    "the host of this session is gone ({}); was it killed, or does `python -c 'import torch'` fail?"
)


def this_node() -> str:
    """Return this machine's identity in a job: the launcher's number for it, or its host name."""
    return os.environ.get("GROUP_RANK") or os.environ.get("SLURM_NODEID") or socket.gethostname()


class HostClient:
    """One pool's connection to one host.

    A lost connection is made anew with the next rank, since the session starts a lost host anew.

    Attributes:
        address: The host's address.
        node: The host's machine.
        ended: The exit statuses of ranks that have ended, by pid.

    Raises:
        HarnessError: There is no such host.
    """

    def __init__(self, address: str) -> None:
        self.node, self.address = this_node(), address
        self.ended: dict[int, int] = {}
        self._connection: socket.socket | None = self._connected()

    def start(self, rank: int) -> "Process":
        """Start a new rank.

        Raises:
            HarnessError: No rank could be started.
        """
        return Process.start(self, rank)

    def fork(self, rank: int, control: socket.socket, output: int, stacks: int, words: int) -> int:
        """Fork a rank that serves `control`, and return its pid.

        The rank prints to `output`, and writes its stacks to `stacks` and its last words to
        `words`.

        Returns:
            Its pid.

        Raises:
            HostLost: The host ended.
            HarnessError: There is no host any more, it gives no answer, or the system allows no
                more processes.
        """
        if self._connection is None:
            self._connection = self._connected()
        self._say(f"fork {rank}", [control.fileno(), output, stacks, words])
        verb, pid = "", 0
        while verb != "forked":
            try:
                verb, pid = self._hear(STARTING)
            except TimeoutError:
                raise HarnessError(
                    f"the host of this session started no rank within {STARTING:.0f} s"
                    + (f"; {overload}" if (overload := load.measure().excess) else "")
                ) from None
        if not pid:
            raise HarnessError("the system allows no more processes (is `ulimit -u` too low?)")
        self.ended.pop(pid, None)  # Of an earlier process with the same number.
        return pid

    def end(self, pid: int) -> int | None:
        """Kill a rank if it still runs, and wait until it is gone.

        A rank may be in a system call that no signal interrupts. Such a rank is left to the kernel.

        Returns:
            Its exit status, negative for the signal that ended it. None if it had to be killed
            here.
        """
        status = self.status(pid, 0.0)
        if status is None:
            self._say(f"kill {pid}", [])
            self.status(pid, PATIENCE)
        self.ended.pop(pid, None)
        return status

    def status(self, pid: int, patience: float) -> int | None:
        """Return how a rank ended, or None if it did not end within `patience` seconds."""
        until = time.monotonic() + patience
        try:
            while pid not in self.ended:
                self._hear(until - time.monotonic())
        except TimeoutError:
            return None
        return self.ended[pid]

    def close(self) -> None:
        """Disconnect; the host kills all ranks that are left."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect("\0" + self.address)
        except OSError as error:
            connection.close()
            raise HarnessError(_GONE.format(error)) from error
        self.ended = {}
        return connection

    def _lost(self, why: object) -> HostLost:
        """Drop the connection to a host that ended, and return the error that says so."""
        self.close()
        return HostLost(self.address, _GONE.format(why))

    def _say(self, command: str, descriptors: list[int]) -> None:
        if self._connection is None:
            raise self._lost("its connection closed")
        try:
            socket.send_fds(self._connection, [command.encode()], descriptors)
        except OSError as error:
            raise self._lost(error) from error

    def _hear(self, patience: float) -> tuple[str, int]:
        """Read one message of the host.

        Raises:
            TimeoutError: No message arrives in time.
            HostLost: The host ended.
        """
        if self._connection is None:
            raise self._lost("its connection closed")
        self._connection.settimeout(max(patience, 1e-6))
        try:
            message = self._connection.recv(256)
        except TimeoutError:
            raise
        except OSError as error:
            raise self._lost(error) from error
        if not message:
            raise self._lost("it closed the connection")
        verb, pid, *status = message.decode().split()
        if verb == "ended":
            self.ended[int(pid)] = int(status[0])
        return verb, int(pid)


@dataclass
class Process:
    """One rank: its process, its socket, its output pipe and the anonymous file of its stacks.

    The pool reads the printed output while it waits for the rank, and keeps only the end. So a rank
    that floods its output takes time, but never memory. The stacks go to a separate file, so that
    no flood removes them.

    Files rather than descriptors: one that is closed twice, as when another thread still uses the
    pool, closes no descriptor that was given to somebody else in between.
    """

    host: HostClient
    pid: int
    control: socket.socket
    output: FileIO
    stacks: FileIO
    words: LastWords
    ended: bool = False
    tail: bytes = b""
    loaded: set[Ddp | Sampler] = field(default_factory=set)
    altered_by: Ddp | Sampler | None = None

    @classmethod
    def start(cls, host: HostClient, rank: int) -> Self:
        """Make a host fork the process.

        Raises:
            HarnessError: It cannot.
        """
        pool_end, rank_end = socket.socketpair()
        rank_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_FLIGHT)
        reading, writing = os.pipe()
        output, printing = FileIO(reading), FileIO(writing, "w")
        os.set_blocking(reading, False)
        stacks, words = (
            FileIO(os.memfd_create(f"{name}{rank}"), "r+") for name in ("rank", "words")
        )
        fcntl.fcntl(stacks, fcntl.F_SETFL, os.O_APPEND)
        words.truncate(WORDS_SIZE)
        try:
            pid = host.fork(rank, rank_end, printing.fileno(), stacks.fileno(), words.fileno())
            return cls(host, pid, pool_end, output, stacks, LastWords(words.fileno()))
        except HarnessError:
            for kept in (pool_end, output, stacks):
                kept.close()
            raise
        finally:
            for sent in (rank_end, printing, words):
                sent.close()

    def forget_output(self) -> None:
        """Forget the printed output and the stacks of the last request."""
        for _ in range(16):  # A rank may print without end.
            if not self.drain():
                break
        self.tail = b""
        if os.fstat(self.stacks.fileno()).st_size:
            self.stacks.truncate(0)

    def drain(self) -> bool:
        """Read printed output from the pipe, and return whether there was any."""
        if self.ended:
            return False
        piece = self.output.read(_PIPE)
        if piece is None:
            return False
        # It has closed its stdout and stderr, or it is gone with all processes that inherited them.
        self.ended = not piece
        self.tail = (self.tail + piece)[-_OUTPUT_KEPT:]
        return bool(piece)

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        with contextlib.suppress(ProcessLookupError):  # It has ended in the meantime.
            os.kill(self.pid, number)

    def status(self, patience: float) -> int | None:
        """Return how the process ended, or None if it did not end within `patience` seconds."""
        return self.host.status(self.pid, patience)

    def printed(self) -> str:
        """Return the process's stacks and the end of its printed output since the last request.

        Stacks exist if the pool asked for them or the process crashed.
        """
        self.drain()
        stacks = os.pread(self.stacks.fileno(), _OUTPUT_KEPT, 0)
        return "\n".join(
            text
            for piece in (_EXTENSIONS.sub(b"", stacks), self.tail)
            if (text := piece.decode(errors="replace").strip("\0\n "))
        )

    def native_waits(self) -> str:
        """Return where its native threads wait, as the kernel sees it; empty when it is gone."""
        lines: list[str] = []
        try:
            tasks = sorted(Path(f"/proc/{self.pid}/task").iterdir())
        except OSError:
            return ""
        for task in tasks:
            with contextlib.suppress(OSError):
                lines.append(
                    f"\nthread {task.name} {(task / 'comm').read_text().strip()}: "
                    f"{(task / 'wchan').read_text()}"
                )
        return "".join(lines)

    def look(self) -> threads.Look | None:
        """Return its threads as the kernel shows them; None if it does not."""
        return threads.look(self.pid)

    def waits_for_ever(self, until: float, *, answered: bool) -> bool:
        """Return whether only its peers can make it run before a time; see `threads`."""
        return threads.waits_for_ever(self.pid, until, answered=answered)

    def issued(self, case: int) -> int:
        """Return the number of collectives that the process has issued in a case."""
        return self.words.issued(case)

    def last_calls(self, case: int) -> LastCalls | None:
        """Return the collectives that the process is known to have issued in a case."""
        return self.words.read(case)

    def retire(self) -> int | None:
        """End the process for good, and return its exit status if it had ended by itself.

        The status is None if it is not known.
        """
        self.words.close()
        self.control.close()
        self.output.close()
        self.stacks.close()
        try:
            return self.host.end(self.pid)
        except HarnessError:  # The host is gone, and has taken its ranks along.
            return None
