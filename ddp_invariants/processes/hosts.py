"""The hosts' start and end: the one place of the controller that starts processes.

There are two hosts with different hash seeds, and ranks are forked from them in turn. Under
torchrun every rank has its own hash seed. An implementation that iterates a set must not pass here
only because all ranks share one.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Self

from ddp_invariants.errors import HarnessError

HASH_SEEDS = ("534", "732")
"""Of the hosts. Among 1,000 seeds these differ most in the order of sets of two usual names."""
LOOPBACK = "lo"
"""The interface on which ranks of one machine meet, so that no name has to resolve."""
STARTING = 180.0
"""Seconds a host may take to import torch on a busy machine."""
STARTS = 30
"""Times that each host is started in a session: a start takes seconds."""
PATIENCE = 10.0
"""Seconds for an action that takes the kernel milliseconds: nothing here waits for ever."""


class Hosts:
    """The fork servers of a session, shared by all its pytest workers.

    Args:
        python: The interpreter of the hosts and all ranks; empty for this one. Another interpreter
            is handed this package, and needs torch and numpy of its own.
        hash_seeds: Of the hosts, one each.
        interface: The network interface over which ranks reach one another; empty to leave that to
            gloo.
        module: A module that each rank will import on the CPU, for the hosts to import once; empty
            for none. See [Note: importing once] in host.py.

    Attributes:
        addresses: The addresses that pools connect to, as plain strings for other processes.
    """

    def __init__(
        self,
        python: str = "",
        *,
        hash_seeds: tuple[str, ...] = HASH_SEEDS,
        interface: str = LOOPBACK,
        module: str = "",
    ) -> None:
        self.addresses: list[str] = []
        self._handed = tempfile.TemporaryDirectory(prefix="ddp-invariants-") if python else None
        root = _ROOT if self._handed is None else Path(self._handed.name)
        # Hand over the package alone: its neighbours here belong to this interpreter.
        if self._handed is not None:
            (root / "ddp_invariants").symlink_to(_ROOT / "ddp_invariants")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._hosts: list[_Host] = []
        for number, hash_seed in enumerate(hash_seeds):
            # Abstract: no file to leave behind. The host refuses connections of other users.
            address = f"ddp-invariants-{os.getpid()}-{number}-{secrets.token_hex(8)}"
            command = [python or sys.executable, "-m", "ddp_invariants.ranks.host"]
            variables = environment(hash_seed, root, interface)
            self._hosts.append(_Host(address, command, variables, self._errors, module))
            self.addresses.append(address)

    @property
    def pids(self) -> list[int]:
        """The hosts' processes at this moment."""
        return [host.process.pid for host in self._hosts]

    def close(self) -> None:
        """End the hosts, which end all their descendants first; see [Note: orphans] in host.py."""
        for host in self._hosts:
            host.terminate()
        for host in self._hosts:
            host.wait()
        self._errors.close()
        if self._handed is not None:
            self._handed.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        HarnessError: The system allows no more threads.
    """
    try:
        thread.start()
    except RuntimeError:
        raise HarnessError("the system allows no more threads (is `ulimit -u` too low?)") from None


class _Host:
    """A fork server and the thread that starts it anew when it is lost.

    An implementation can reach the host, which is its parent process: it may kill or stop it. The
    listening socket stays open here meanwhile, so that pools may connect at once.

    Args:
        address: The host's address.
        command: The command that starts it, without its last arguments.
        variables: Its environment.
        errors: A file for its output.
        module: A module that it imports once; empty for none.

    Attributes:
        process: The process that is running now.
    """

    def __init__(
        self,
        address: str,
        command: list[str],
        variables: dict[str, str],
        errors: IO[bytes],
        module: str,
    ) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + address)
        self._listener.listen(64)
        self._command = [*command, str(self._listener.fileno()), str(os.getpid())]
        self._command += [module] if module else []
        self._variables, self._errors = variables, errors
        self._ends, self._lock = False, threading.Lock()
        self.process = self._started()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        try:
            start_thread(self._watcher)
        except HarnessError:
            self.process.kill()
            raise

    def terminate(self) -> None:
        """Tell the process to end, for good."""
        with self._lock:
            self._ends = True
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)  # A rank may have stopped it.

    def wait(self) -> None:
        """Wait until the process has ended; kill it if it takes too long."""
        self._watcher.join(PATIENCE)
        if self._watcher.is_alive():
            self.process.kill()  # The kernel ends its ranks.
            self._watcher.join(PATIENCE)  # Only the kernel can end it.

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            pass_fds=[self._listener.fileno()],
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            # Code that cleans up may kill its process group. That must not be the user's own.
            process_group=0,
        )

    def _watch(self) -> None:
        """Start the process anew each time that a signal ends it, and wake it if it is stopped.

        The kernel ends the process if this thread ends; see `host.die_with_parent`.
        """
        for _ in range(STARTS):
            while _is_stopped(self.process.pid):
                os.kill(self.process.pid, signal.SIGCONT)
            status = self.process.wait()
            with self._lock:
                # A host that cannot import torch ends with a status of its own.
                if self._ends or status > 0:
                    break
                self.process = self._started()
        self._listener.close()


def _is_stopped(pid: int) -> bool:
    """Wait until a child process stops or ends; return whether it stopped."""
    try:
        seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    except ChildProcessError:  # It has ended, and another thread has asked for its status.
        return False
    return seen is not None and seen.si_code == os.CLD_STOPPED


_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds this package."""


def environment(
    hash_seed: str = HASH_SEEDS[0], root: Path = _ROOT, interface: str = LOOPBACK
) -> dict[str, str]:
    """Return the environment a host is started with, for any process that must see the same."""
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": str(root) + (os.pathsep + inherited if inherited else ""),
        # One thread per rank: there are more ranks than cores.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
    }
