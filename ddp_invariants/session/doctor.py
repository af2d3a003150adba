"""The checks of `doctor`: advice about this machine, as a pure function of its facts."""

from dataclasses import dataclass
from typing import Literal

from ddp_invariants.session.facts import MachineFacts, TorchFacts

Standing = Literal["ok", "warning", "problem"]

MIB = 1 << 20
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


def diagnose(facts: MachineFacts) -> list[Check]:
    """Return the checks that follow from the facts, in the order in which to fix problems."""
    return [
        _ok_unless(
            "system",
            facts.system,
            facts.system != "Linux",
            "ranks are forked from a server, and only Linux ends them together with it: use Linux, "
            "or a Linux container",
        ),
        _ok_unless(
            "python",
            "{}.{}".format(*facts.python),
            facts.python < (3, 11),
            "use Python 3.11 or newer",
        ),
        *_torch_checks(facts),
        *_network_checks(facts),
        *_limit_checks(facts),
        _training_check(facts),
    ]


def _network_checks(facts: MachineFacts) -> list[Check]:
    """Make the checks of the kernel's features and of the local network."""
    return [
        _ok_unless(
            "kernel",
            facts.kernel or "anonymous files, abstract sockets",
            bool(facts.kernel),
            "the harness needs this feature; a sandbox may have disabled it",
        ),
        _ok_unless(
            "loopback",
            facts.loopback or "127.0.0.1 binds and connects",
            bool(facts.loopback),
            "ranks communicate over 127.0.0.1: bring it up (ip link set lo up), or give the "
            "container a network namespace",
        ),
        _ok_unless(
            "localhost",
            ", ".join(facts.localhost) or "the name does not resolve",
            "127.0.0.1" not in facts.localhost,
            "ranks do not need this name, but torchrun does: add `127.0.0.1 localhost` to "
            "/etc/hosts",
            "warning",
        ),
    ]


def _limit_checks(facts: MachineFacts) -> list[Check]:
    """Make the checks of limits, memory and cores."""
    cores = f"{facts.cores}" + (
        f", of which the container may use {facts.quota:g}" if facts.quota is not None else ""
    )
    return [
        _enough("open files", facts.files, _DESCRIPTORS, "raise the limit: ulimit -n 4096"),
        _enough("processes", facts.processes, _PROCESSES, "raise the limit: ulimit -u 4096"),
        _enough(
            "processes of the container",
            facts.group_processes,
            _PROCESSES,
            "raise the limit: --pids-limit 4096",
        ),
        _enough(
            "memory", facts.memory, _MEMORY, "free memory, or use fewer workers (-n 1)", unit=MIB
        ),
        _enough(
            "shared memory",
            facts.shared,
            _SHARED,
            "give the container more: --shm-size=1g",
            unit=MIB,
        ),
        _ok_unless(
            "cores",
            cores,
            min(facts.cores, facts.quota or facts.cores) < 2,
            "ranks take turns on one core: cases take longer, verdicts are the same",
            "warning",
        ),
        _ok_unless(
            "load",
            facts.load.excess or facts.load.words,
            facts.load.is_over,
            "end other programs, or use fewer workers (-n 1): cases take longer, and what waits for "
            "a time may fail, so that sessions end inconclusive",
            "warning",
        ),
    ]


def _torch_checks(facts: MachineFacts) -> list[Check]:
    """Make the checks of torch; only one if it cannot be imported."""
    torch = facts.torch
    if torch is None:
        return [
            Check(
                "torch",
                "problem",
                facts.torch_error,
                "install torch for this interpreter: pip install torch",
            )
        ]
    return [
        _ok_unless(
            "torch",
            f"{torch.version}, numpy {torch.numpy}, built for {torch.built_for}",
            torch.debug,
            "this is a debug build, which is slow: ranks may exceed their deadlines",
            "warning",
        ),
        _ok_unless(
            "backends",
            ", ".join(torch.backends) or "none",
            "gloo" not in torch.backends,
            "ranks communicate over gloo: use a build of torch that includes it",
        ),
        Check(
            "GPUs",
            "ok",
            ", ".join(torch.gpus) or "none",
            "used only if --backend gloo-cuda or nccl asks for them; not yet tested on any GPU"
            if torch.gpus
            else "",
        ),
        _fork_check(torch),
        _ok_unless(
            "orphans",
            torch.subreaper or "can be adopted",
            bool(torch.subreaper),
            "the harness could not end processes that a rank starts and leaves behind; a sandbox "
            "may prevent it",
        ),
        _ok_unless(
            "scheduling",
            torch.batch_scheduling or "SCHED_BATCH is allowed",
            bool(torch.batch_scheduling),
            "collectives are slower without SCHED_BATCH: allow sched_setscheduler in the "
            "container's seccomp profile",
            "warning",
        ),
    ]


def _fork_check(torch: TorchFacts) -> Check:
    """Check that ranks can be forked from a process that has imported torch."""
    remedy = "find the code that starts threads on import (sitecustomize, a .pth file)"
    if torch.forked:
        return Check(
            "fork",
            "problem",
            torch.forked,
            f"ranks are forked from a process that has imported torch: {remedy}",
        )
    return _ok_unless(
        "fork",
        f"{torch.threads} thread{'s' if torch.threads > 1 else ''} after importing torch",
        torch.threads > 1,
        f"a rank hangs if another thread holds a lock while the rank is forked: {remedy}",
        "warning",
    )


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
        f"{advice}; at least {limits[1] // unit:,} are recommended",
        standing,
    )


def _training_check(facts: MachineFacts) -> Check:
    """Make the final check: two ranks that train."""
    if facts.training_seconds is None:
        return Check(
            "two ranks",
            "problem",
            facts.training_error or "the ranks were not started",
            "fix the problems above; if there are none, report it with the output of this command",
        )
    return Check(
        "two ranks",
        "ok",
        f"trained two steps over gloo in {1000 * facts.training_seconds:.0f} ms, correct by all rules",
    )
