"""The global state that a case must leave as it found it, so that the next case is not changed."""

import builtins
import gc
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ddp_invariants.ranks.versions import Version
from ddp_invariants.reference import ddp as reference_ddp
from ddp_invariants.reference import sampler as reference_sampler

SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Environment variables that the harness itself sets for each case."""
_SIZES = frozenset(name.encode() for name in SIZES)

_MODULES: tuple[Any, ...] = (
    reference_ddp,
    reference_sampler,
    torch,
    dist,
    dist.distributed_c10d,
    torch.autograd,
    nn.functional,
    nn.init,
    nn.utils,
    nn.modules.module,
    builtins,
    os,
    random,
    np.random,
    threading,
    time,
    json,
    struct,
    socket,
    signal,
    warnings,
)
"""Modules in which a replaced name counts; an added name is usually an import, and harmless."""
_CLASSES: tuple[Any, ...] = (
    reference_ddp.DistributedDataParallel,
    reference_sampler.DistributedSampler,
    torch.Tensor,
    nn.Parameter,
    nn.Module,
    nn.Linear,
    nn.ModuleList,
    nn.Sequential,
    torch.optim.Optimizer,
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    dist.ProcessGroup,
)
"""Classes in which an added name counts too, since it may replace an inherited one."""
_WATCHED: tuple[tuple[str, Any], ...] = tuple(
    (thing.__name__, thing) for thing in (*_MODULES, *_CLASSES)
)
_LIMITS = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_DATA,
    resource.RLIMIT_AS,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_CPU,
)
_HOOKS: tuple[Mapping[Any, Any], ...] = tuple(
    value
    for thing in (nn.Module, torch.optim.Optimizer)
    for name, value in vars(sys.modules[thing.__module__]).items()
    if name.startswith("_global_") and isinstance(value, dict)
)
"""Hooks for all modules and all optimizers."""
_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGUSR1,
    signal.SIGSEGV,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGCHLD,
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SMALLEST = sys.float_info.min


class _Names:
    """The names of a module or class, as they were when they were last read.

    Args:
        thing: The module or class.
    """

    def __init__(self, thing: Any) -> None:
        self._thing, self._version = thing, Version(vars(thing))
        self._number, self._read = self._version.number(), dict(vars(thing))

    def taken(self) -> dict[str, Any]:
        """Return the names as they are now; the same dict until they change."""
        number = self._version.number()
        if number != self._number:
            now = vars(self._thing)
            if not _same_objects(list(self._read.values()), list(now.values())):
                self._read = dict(now)
            self._number = number
        return self._read


_NAMES: list[_Names] = []
"""The watched names. A host reads them, so that its ranks need not ([Note: versions])."""


class Surroundings:
    """The process's global state at the time when the object was made.

    Names are compared by identity, and only where a namespace has changed, because this runs in
    every case. State that is not listed here is not checked. The lists hold everything that the
    harness, the reference and the implementations known so far depend on.
    """

    def __init__(self) -> None:
        if not _NAMES:
            _NAMES.extend(_Names(thing) for _, thing in _WATCHED)
        self._settings = _settings()
        self._names = [names.taken() for names in _NAMES]

    def changed(self) -> list[str]:
        """Return the names of everything that has changed."""
        changed = [name for name, value in _settings().items() if self._settings[name] != value]
        for number, (name, thing) in enumerate(_WATCHED):
            before, now = self._names[number], _NAMES[number].taken()
            if now is before:
                continue
            self._names[number] = now
            if _replaced(before, now, of_class=isinstance(thing, type)):
                changed.append(f"names in {name}")
        return changed


def _same_objects(old: list[Any], new: list[Any]) -> bool:
    try:
        return old == new
    except Exception:  # noqa: BLE001 - only changed objects are compared by ==, so the answer is no
        return False


def _replaced(old: dict[str, Any], new: dict[str, Any], *, of_class: bool) -> bool:
    """Return whether a name was removed or stands for another function or class.

    In a class every change counts.
    """
    if of_class and len(new) > len(old):
        return True
    missing = object()  # Some of a module's plain values are torch.distributed's own book-keeping.
    return any(
        new.get(name, missing) is not value and (of_class or callable(value))
        for name, value in old.items()
    )


def _settings() -> dict[str, Any]:
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "torch threads": torch.get_num_threads(),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "precision of matrix products": torch.get_float32_matmul_precision(),
        "flushing of subnormal numbers": _SMALLEST / 2 == 0.0,
        "modes of torch": (
            torch._C._len_torch_function_stack(),
            torch._C._len_torch_dispatch_stack(),
        ),
        "global hooks": [list(hooks) for hooks in _HOOKS],
        "working directory": _working_directory(),
        "environment": _environment(),
        "exception hooks": (sys.excepthook, threading.excepthook),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "garbage collection": gc.isenabled(),
        "recursion limit": sys.getrecursionlimit(),
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
        "timers": [signal.getitimer(kind)[0] > 0 for kind in _TIMERS],
        "resource limits": [resource.getrlimit(kind) for kind in _LIMITS],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "timeout of new sockets": socket.getdefaulttimeout(),
        "switching of threads": sys.getswitchinterval(),
        "floating-point errors of numpy": np.geterr(),
        "standard streams": (sys.stdout, sys.stderr),
        "session": os.getsid(0),
        "child processes": _has_children(),
        # Threads of torch's own that have called Python are counted for good.
        "Python threads": sum(
            not isinstance(thread, threading._DummyThread) for thread in threading.enumerate()
        ),
    }


def _environment() -> dict[bytes, bytes]:
    """Return the variables but those of the harness; a variable that was set anew comes last."""
    # Undecoded: four times faster.
    return {
        name: value
        for name, value in os.environ._data.items()  # type: ignore[attr-defined]  # no stub
        if name not in _SIZES
    }


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - ten times faster than pathlib, in every case
    except OSError:
        return "(removed)"


def _has_children() -> bool:
    """Return whether this process has any child, even an ended one that nobody waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    return True


_WALL = 0x40000000
"""Of wait(2): children of any kind."""


def kernel_counts() -> dict[str, int]:
    """Count threads, native ones included, and open descriptors."""
    return {"threads": _entries("/proc/self/task"), "open descriptors": _entries("/proc/self/fd")}


def child_processes() -> int:
    """Count the children of any thread, including ended ones that nobody waited for."""
    return sum(
        len(path.read_bytes().split()) for path in Path("/proc/self/task").glob("*/children")
    )


def _entries(folder: str) -> int:
    return len(os.listdir(folder))  # noqa: PTH208 - ten times faster than pathlib, in every case
