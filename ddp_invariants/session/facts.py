"""The facts about this machine that decide whether it can judge."""

import json
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ddp_invariants.errors import HarnessError, LoadFailure
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.hosts import Hosts, environment
from ddp_invariants.processes.load import IDLE, Load, measure
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.capability import BASE

_STARTING = 120.0
"""Seconds an interpreter may take to import torch."""


@dataclass(frozen=True)
class TorchFacts:
    """The facts from a process that has imported torch (`ranks/torch_probe.py`).

    Texts about failures are empty if nothing failed.

    Attributes:
        version: Of torch.
        numpy: Version of numpy.
        debug: True if torch is a debug build.
        built_for: CPU, or the version of CUDA or HIP.
        backends: Of torch.distributed.
        gpus: Their names.
        threads: Threads of the process after importing torch.
        forked: The failure of a forked child that computes.
        subreaper: Why orphans cannot be adopted.
        batch_scheduling: Why the scheduling policy of ranks is not available.
    """

    version: str
    numpy: str
    debug: bool
    built_for: str
    backends: Sequence[str]
    gpus: Sequence[str]
    threads: int
    forked: str
    subreaper: str
    batch_scheduling: str


@dataclass(frozen=True)
class MachineFacts:
    """The facts about this machine.

    Limits are None if there is none. Texts about failures are empty if nothing failed.

    Attributes:
        system: Name of the operating system.
        python: Version of this interpreter.
        torch: The facts that need torch; None if it cannot be imported.
        torch_error: Why it cannot.
        cores: Cores that this process may use.
        quota: CPU time that its control group may use, in cores.
        files: Open files.
        processes: Processes of this user.
        group_processes: Processes and threads that its control group may still start.
        memory: Bytes that may still be taken.
        shared: Bytes of /dev/shm.
        loopback: The failure over 127.0.0.1.
        localhost: Addresses that the name resolves to.
        kernel: The kernel feature that the harness needs and does not get.
        training_seconds: Seconds a case of two ranks took; None if it was not run to its end.
        training_error: Why not.
        load: The load that other programs make.
    """

    system: str
    python: tuple[int, int]
    torch: TorchFacts | None
    torch_error: str
    cores: int
    quota: float | None
    files: int | None
    processes: int | None
    group_processes: int | None
    memory: int | None
    shared: int | None
    loopback: str
    localhost: Sequence[str] = field(default_factory=tuple)
    kernel: str = ""
    training_seconds: float | None = None
    training_error: str = ""
    load: Load = IDLE


def examine(train: Callable[[], tuple[float | None, str]] | None = None) -> MachineFacts:
    """Collect the facts about this machine.

    Args:
        train: Runs a case; None for two ranks of the reference.
    """
    load = measure()
    torch, torch_error = _ask_torch()
    seconds, training_error = (
        (train or _two_ranks)() if torch is not None else (None, "torch cannot be imported")
    )
    return MachineFacts(
        system=platform.system(),
        python=(sys.version_info.major, sys.version_info.minor),
        torch=torch,
        torch_error=torch_error,
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        quota=_quota(),
        files=_limit(resource.RLIMIT_NOFILE),
        processes=None if os.getuid() == 0 else _limit(resource.RLIMIT_NPROC),
        group_processes=_left("pids.max", "pids.current"),
        memory=_memory(),
        shared=_shared(),
        loopback=_loopback(),
        localhost=_localhost(),
        kernel=_kernel(),
        training_seconds=seconds,
        training_error=training_error,
        load=load,
    )


def _ask_torch() -> tuple[TorchFacts | None, str]:
    """Ask an interpreter that imports torch for its facts, and return why there are none.

    The controller itself does not import torch.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ddp_invariants.ranks.torch_probe"],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=_STARTING,
            check=False,
        )
        return TorchFacts(**json.loads(done.stdout.splitlines()[-1])), ""
    except subprocess.TimeoutExpired:
        return None, f"the import takes more than {_STARTING:.0f} s"
    except (OSError, ValueError, TypeError, IndexError) as error:
        last = done.stderr.strip().splitlines()[-1:] if "done" in locals() else [str(error)]
        return None, f"the import fails: {(last or ['without a message'])[0]}"


def _two_ranks() -> tuple[float | None, str]:
    """Run the simplest case on the reference, and return its seconds or the failure.

    The seconds do not include connecting the group.
    """
    try:
        with Hosts() as hosts, Pool(hosts.addresses) as pool:
            pool.train(BASE, Ddp())
            began = time.monotonic()
            evidence = pool.train(BASE, Ddp())
            seconds = time.monotonic() - began
    except (HarnessError, LoadFailure, OSError) as error:
        return None, str(error)
    failure = next(
        (finding.failure for finding in judge(evidence).values() if finding.failure is not None),
        None,
    )
    return (
        (seconds, "")
        if failure is None
        else (None, f"{failure.rule} violated: {failure.fact}; {failure.where}; {failure.got}")
    )


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


_GROUP = Path("/sys/fs/cgroup")


def _read(name: str) -> str:
    """Read a file of this process's control group; empty if there is none.

    Inside a container it is the container's control group.
    """
    with suppress(OSError):
        return (_GROUP / name).read_text(encoding="ascii").strip()
    return ""


def _left(most: str, taken: str) -> int | None:
    limit, used = _read(most), _read(taken)
    return int(limit) - int(used or 0) if limit.isdecimal() else None


def _quota() -> float | None:
    most, _, period = _read("cpu.max").partition(" ")
    return int(most) / int(period) if most.isdecimal() and period.isdecimal() else None


def _memory() -> int | None:
    """Return the free memory of the machine or of the container, whichever is less."""
    candidates = [_left("memory.max", "memory.current")]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        candidates.append(
            1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        )
    return min((candidate for candidate in candidates if candidate is not None), default=None)


def _shared() -> int | None:
    try:
        filesystem = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return filesystem.f_bavail * filesystem.f_frsize


def _loopback() -> str:
    """Bind, connect and send over loopback; return the failure, empty for none."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5.0) as client,
        ):
            server.settimeout(5.0)
            peer, _ = server.accept()
            with peer:
                client.sendall(b"?")
                return (
                    "" if peer.recv(1) == b"?" else "a message sent over 127.0.0.1 did not arrive"
                )
    except OSError as error:
        return f"127.0.0.1: {error.strerror or error}"


def _localhost() -> tuple[str, ...]:
    try:
        return tuple(
            dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo("localhost", None))
        )
    except OSError:
        return ()


def _kernel() -> str:
    """Make the kernel objects that the harness needs; return the failure, empty for none."""
    try:
        os.close(os.memfd_create("doctor"))
    except (AttributeError, OSError) as error:
        return f"the kernel made no anonymous file: {error}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0ddp-invariants-doctor-{os.getpid()}")
    except OSError as error:
        return f"the kernel made no abstract socket: {error}"
    return ""
