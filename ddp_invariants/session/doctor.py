"""The checks of `doctor`: facts about this machine, and advice.

`examine` collects the facts and is the only part that does. `diagnose` is a pure function of them.
"""

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
from typing import Literal

from ddp_invariants.errors import HarnessError, LoadFailure
from ddp_invariants.implementation.spec import Ddp
from ddp_invariants.invariants import judge
from ddp_invariants.processes.hosts import Hosts, environment
from ddp_invariants.processes.pool import Pool
from ddp_invariants.situations.capability import BASE

Standing = Literal["ok", "warning", "problem"]

MIB = 1 << 20
_STARTING = 120.0
"""Seconds an interpreter may take to import torch."""
_DESCRIPTORS = 48, 512
"""Limits of open files: nothing runs below the first, long sessions are at risk below the second.

Four ranks have thirty files open.
"""
_PROCESSES = 32, 512
"""The same for processes and threads: each worker has up to four ranks of four threads."""
_MEMORY = 1024 * MIB, 3072 * MIB
"""The same for memory.

Each of two hosts takes 290 MiB, most of it shared with the other, and each rank 17 more.
"""
_SHARED = 16 * MIB, 64 * MIB
"""The same for shared memory, through which workers of a DataLoader pass batches."""


@dataclass(frozen=True)
class Check:
    """One check of the machine.

    Attributes:
        name: The thing that was checked.
        standing: `ok`; `warning`: verdicts are right, but slower or fewer; `problem`: nothing can
            be judged.
        result: The result.
        advice: The remedy; empty if none is needed.
    """

    name: str
    standing: Standing
    result: str
    advice: str = ""


@dataclass(frozen=True)
class Torch:
    """The facts from a process that has imported torch (`ranks/examined.py`).

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
class Facts:
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
        trained: Seconds a case of two ranks took; None if it was not run to its end.
        training_error: Why not.
    """

    system: str
    python: tuple[int, int]
    torch: Torch | None
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
    trained: float | None = None
    training_error: str = ""


def diagnose(facts: Facts) -> list[Check]:
    """Return the checks that follow from the facts, in the order in which to fix problems."""
    cores = f"{facts.cores}" + (
        f", of which the container gets {facts.quota:g}" if facts.quota is not None else ""
    )
    return [
        _ok_unless(
            "system",
            facts.system,
            facts.system != "Linux",
            "ranks are forked from a server and tied to their parents by Linux: use it, or a "
            "container",
        ),
        _ok_unless(
            "python",
            "{}.{}".format(*facts.python),
            facts.python < (3, 11),
            "3.11 or newer is needed",
        ),
        *_of_torch(facts),
        _ok_unless(
            "kernel",
            facts.kernel or "anonymous files, abstract sockets",
            bool(facts.kernel),
            "the harness needs them: is this a sandbox?",
        ),
        _ok_unless(
            "loopback",
            facts.loopback or "127.0.0.1 binds and connects",
            bool(facts.loopback),
            "ranks talk over 127.0.0.1: bring it up (ip link set lo up), or give the container "
            "a network namespace",
        ),
        _ok_unless(
            "localhost",
            ", ".join(facts.localhost) or "it does not resolve",
            "127.0.0.1" not in facts.localhost,
            "no rank here needs the name, but torchrun does: add `127.0.0.1 localhost` to "
            "/etc/hosts",
            "warning",
        ),
        _enough("open files", facts.files, _DESCRIPTORS, "raise it: ulimit -n 4096"),
        _enough("processes", facts.processes, _PROCESSES, "raise it: ulimit -u 4096"),
        _enough(
            "processes of the container",
            facts.group_processes,
            _PROCESSES,
            "raise it: --pids-limit 4096",
        ),
        _enough(
            "memory", facts.memory, _MEMORY, "give more, or judge in fewer workers (-n 1)", unit=MIB
        ),
        _enough(
            "shared memory",
            facts.shared,
            _SHARED,
            "give more: --shm-size=1g (of containers)",
            unit=MIB,
        ),
        _ok_unless(
            "cores",
            cores,
            min(facts.cores, facts.quota or facts.cores) < 2,
            "ranks take turns: cases take longer, verdicts are the same",
            "warning",
        ),
        _trained(facts),
    ]


def _of_torch(facts: Facts) -> list[Check]:
    torch = facts.torch
    if torch is None:
        return [
            Check(
                "torch",
                "problem",
                facts.torch_error,
                "pip install torch, in the environment of this interpreter",
            )
        ]
    on_import = "find out what starts threads on import (sitecustomize, a .pth file)"
    threads = f"{torch.threads} thread{'s' if torch.threads > 1 else ''} after importing torch"
    if torch.forked:
        fork = Check(
            "fork",
            "problem",
            torch.forked,
            f"ranks are forked from a process that has imported torch: {on_import}",
        )
    else:
        fork = _ok_unless(
            "fork",
            threads,
            torch.threads > 1,
            f"a thread that holds a lock while a rank is forked hangs it: {on_import}",
            "warning",
        )
    return [
        _ok_unless(
            "torch",
            f"{torch.version}, numpy {torch.numpy}, built for {torch.built_for}",
            torch.debug,
            "a debug build is slow: deadlines may pass",
            "warning",
        ),
        _ok_unless(
            "backends",
            ", ".join(torch.backends) or "none",
            "gloo" not in torch.backends,
            "ranks talk over gloo: use a build of torch that has it",
        ),
        Check(
            "GPUs",
            "ok",
            ", ".join(torch.gpus) or "none",
            "used where --backend gloo-cuda or nccl asks for them; no version has run on one yet"
            if torch.gpus
            else "",
        ),
        fork,
        _ok_unless(
            "orphans",
            torch.subreaper or "can be adopted",
            bool(torch.subreaper),
            "what a rank starts and leaves behind could not be ended: is this a sandbox?",
        ),
        _ok_unless(
            "scheduling",
            torch.batch_scheduling or "SCHED_BATCH is allowed",
            bool(torch.batch_scheduling),
            "ranks ask for SCHED_BATCH, and collectives are slower without: let the container's "
            "seccomp profile allow "
            "sched_setscheduler",
            "warning",
        ),
    ]


def _ok_unless(
    name: str,
    result: str,
    wrong: bool,  # noqa: FBT001 - a condition reads best by position
    advice: str,
    standing: Standing = "problem",
) -> Check:
    """Make a check that is ok unless something is wrong."""
    return Check(name, standing if wrong else "ok", result, advice if wrong else "")


def _enough(
    name: str, available: int | None, limits: tuple[int, int], advice: str, unit: int = 1
) -> Check:
    """Check that a limit leaves room: problem below the first number, warning below the second."""
    if available is None:
        return Check(name, "ok", "no limit")
    standing: Standing = "problem" if available < limits[0] else "warning"
    return _ok_unless(
        name,
        f"{available // unit:,}{' MiB' if unit == MIB else ''}",
        available < limits[1],
        f"{advice}; from {limits[1] // unit:,} on all is well",
        standing,
    )


def _trained(facts: Facts) -> Check:
    """Make the final check: two ranks that train."""
    if facts.trained is None:
        return Check(
            "two ranks",
            "problem",
            facts.training_error or "they were not started",
            "put right what is said above; else report it, with the output of this command",
        )
    return Check(
        "two ranks",
        "ok",
        f"trained two steps over gloo in {1000 * facts.trained:.0f} ms, right by all rules",
    )


def examine(train: Callable[[], tuple[float | None, str]] | None = None) -> Facts:
    """Collect the facts about this machine.

    Args:
        train: Runs a case; None for two ranks of the reference.
    """
    torch, torch_error = _ask_torch()
    trained, training_error = (
        (train or _two_ranks)() if torch is not None else (None, "torch cannot be imported")
    )
    return Facts(
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
        trained=trained,
        training_error=training_error,
    )


def _ask_torch() -> tuple[Torch | None, str]:
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
        return Torch(**json.loads(done.stdout.splitlines()[-1])), ""
    except subprocess.TimeoutExpired:
        return None, f"importing it takes more than {_STARTING:.0f} s"
    except (OSError, ValueError, TypeError, IndexError) as error:
        last = done.stderr.strip().splitlines()[-1:] if "done" in locals() else [str(error)]
        return None, f"importing it fails: {(last or ['it says nothing'])[0]}"


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
                return "" if peer.recv(1) == b"?" else "what was sent over 127.0.0.1 did not arrive"
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
        return f"no anonymous file: {error}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0ddp-invariants-doctor-{os.getpid()}")
    except OSError as error:
        return f"no abstract socket: {error}"
    return ""
