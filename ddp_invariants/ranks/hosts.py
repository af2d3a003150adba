"""Starts the hosts and speaks to them: the one place of the controller where processes come from.

Two hosts with different hash seeds, and ranks forked from them in turn: under torchrun
every rank has its own, and code that iterates a set must not pass here by sharing one.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

HASH_SEEDS = ("1", "2")
_STARTING = 180.0
"""Seconds a host may take to import torch on a busy machine."""
_PATIENCE = 10.0
"""Seconds for what takes the kernel milliseconds: nothing here waits for ever."""


class HarnessError(RuntimeError):
    """The harness itself failed: no verdict about any implementation follows from it."""


class Hosts:
    """The fork servers of a session, shared by all its pytest workers.

    Args:
        python: The interpreter they and all ranks run under; empty for this one. Another is handed this package, and needs
            torch and numpy of its own.

    Attributes:
        addresses: Where pools connect to; plain strings, to be handed to other processes.
    """

    def __init__(self, python: str = "") -> None:
        self.addresses: list[str] = []
        self._handed = tempfile.TemporaryDirectory(prefix="ddp-invariants-") if python else None
        root = _ROOT if self._handed is None else Path(self._handed.name)
        if self._handed is not None:  # The package alone: what lies beside it here belongs to this interpreter.
            (root / "ddp_invariants").symlink_to(_ROOT / "ddp_invariants")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the hosts; closed by close()
        for number, hash_seed in enumerate(HASH_SEEDS):
            # Abstract: no file to leave behind. The host refuses connections of other users.
            address = f"ddp-invariants-{os.getpid()}-{number}-{secrets.token_hex(8)}"
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind("\0" + address)
                listener.listen(64)
                descriptor = listener.fileno()
                command = [python or sys.executable, "-m", "ddp_invariants.ranks.host", str(descriptor), str(os.getpid())]
                self._processes.append(subprocess.Popen(
                    command, pass_fds=[descriptor], env=_environment(hash_seed, root), stdin=subprocess.DEVNULL,
                    stdout=self._errors, stderr=self._errors))
            self.addresses.append(address)

    def close(self) -> None:
        """End the hosts, which end everything below them first; see [Note: orphans] in host.py."""
        for process in self._processes:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # A rank may have stopped it.
        for process in self._processes:
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()  # The kernel ends its ranks.
                with contextlib.suppress(subprocess.TimeoutExpired):  # It is in the kernel's hands.
                    process.wait(_PATIENCE)
        self._errors.close()
        if self._handed is not None:
            self._handed.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_ROOT = Path(__file__).resolve().parents[2]
"""Where this package lies."""


def _environment(hash_seed: str, root: Path) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": str(root) + (os.pathsep + inherited if inherited else ""),
        # One thread per rank: there are more ranks than cores.
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        # Loopback, so that no name has to resolve.
        "GLOO_SOCKET_IFNAME": "lo",
    }


class HostClient:
    """One pool's connection to one host."""

    def __init__(self, address: str) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.connection.connect("\0" + address)
        except OSError as error:
            raise HarnessError(f"the host of this session is gone ({error}); was it killed?") from error
        self.ended: dict[int, int] = {}

    def fork(self, rank: int, control: socket.socket, output: int, stacks: int) -> int:
        """Fork a rank that serves `control`, writes what it prints to `output` and its stacks to `stacks`.

        Returns:
            Its pid.

        Raises:
            HarnessError: The host is gone or gives no answer, or the system allows no more processes.
        """
        self._say(f"fork {rank}", [control.fileno(), output, stacks])
        verb, pid = "", 0
        while verb != "forked":
            try:
                verb, pid = self._hear(_STARTING)
            except TimeoutError:
                raise HarnessError(f"the host of this session started no rank within {_STARTING:.0f} s") from None
        if not pid:
            raise HarnessError("the system refuses to start more processes (ulimit -u?)")
        self.ended.pop(pid, None)  # Of an earlier process with the same number.
        return pid

    def end(self, pid: int) -> int | None:
        """Kill a rank if it still runs, and wait until it is gone.

        One that the kernel holds on to (in a system call that no signal interrupts) is left to it.

        Returns:
            Its exit status, negative for the signal that ended it; None when it had to be killed here.
        """
        status = self.status(pid, 0.0)
        if status is None:
            self._say(f"kill {pid}", [])
            self.status(pid, _PATIENCE)
        self.ended.pop(pid, None)
        return status

    def status(self, pid: int, patience: float) -> int | None:
        """How a rank ended, if it did within `patience` seconds."""
        until = time.monotonic() + patience
        try:
            while pid not in self.ended:
                self._hear(until - time.monotonic())
        except TimeoutError:
            return None
        return self.ended[pid]

    def close(self) -> None:
        """Disconnect; the host kills whatever ranks are left."""
        self.connection.close()

    def _say(self, command: str, descriptors: list[int]) -> None:
        try:
            socket.send_fds(self.connection, [command.encode()], descriptors)
        except OSError as error:
            raise HarnessError(f"the host of this session is gone ({error}); was it killed?") from error

    def _hear(self, patience: float) -> tuple[str, int]:
        """One message of the host. Raises TimeoutError when none comes."""
        self.connection.settimeout(max(patience, 1e-6))
        try:
            message = self.connection.recv(256)
        except TimeoutError:
            raise
        except OSError as error:
            raise HarnessError(f"the host of this session is gone ({error}); was it killed?") from error
        if not message:
            raise HarnessError("the host of this session is gone; does `python -c 'import torch'` work?")
        verb, pid, *status = message.decode().split()
        if verb == "ended":
            self.ended[int(pid)] = int(status[0])
        return verb, int(pid)
