"""The hosts' start and end: the one place of the controller that starts processes.

There are two hosts with different hash seeds, and ranks are forked from them in turn. Under
torchrun every rank has its own hash seed. An implementation that iterates a set must not pass here
only because all ranks share one.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

HASH_SEEDS = ("1", "2")
LOOPBACK = "lo"
"""The interface on which ranks of one machine meet, so that no name has to resolve."""
STARTING = 180.0
"""Seconds a host may take to import torch on a busy machine."""
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

    Attributes:
        addresses: The addresses that pools connect to, as plain strings for other processes.
    """

    def __init__(
        self,
        python: str = "",
        *,
        hash_seeds: tuple[str, ...] = HASH_SEEDS,
        interface: str = LOOPBACK,
    ) -> None:
        self.addresses: list[str] = []
        self._handed = tempfile.TemporaryDirectory(prefix="ddp-invariants-") if python else None
        root = _ROOT if self._handed is None else Path(self._handed.name)
        # Hand over the package alone: its neighbours here belong to this interpreter.
        if self._handed is not None:
            (root / "ddp_invariants").symlink_to(_ROOT / "ddp_invariants")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        for number, hash_seed in enumerate(hash_seeds):
            # Abstract: no file to leave behind. The host refuses connections of other users.
            address = f"ddp-invariants-{os.getpid()}-{number}-{secrets.token_hex(8)}"
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind("\0" + address)
                listener.listen(64)
                descriptor = listener.fileno()
                command = [
                    python or sys.executable,
                    "-m",
                    "ddp_invariants.ranks.host",
                    str(descriptor),
                    str(os.getpid()),
                ]
                self._processes.append(
                    subprocess.Popen(
                        command,
                        pass_fds=[descriptor],
                        env=environment(hash_seed, root, interface),
                        stdin=subprocess.DEVNULL,
                        stdout=self._errors,
                        stderr=self._errors,
                    )
                )
            self.addresses.append(address)

    def close(self) -> None:
        """End the hosts, which end all their descendants first; see [Note: orphans] in host.py."""
        for process in self._processes:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # A rank may have stopped it.
        for process in self._processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()  # The kernel ends its ranks.
                with contextlib.suppress(subprocess.TimeoutExpired):  # Only the kernel can end it.
                    process.wait(PATIENCE)
        self._errors.close()
        if self._handed is not None:
            self._handed.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
