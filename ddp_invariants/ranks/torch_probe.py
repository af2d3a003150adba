"""A machine's torch facts, as JSON: `python -m ddp_invariants.ranks.torch_probe`.

Only a process that has imported torch can report these facts.
"""

import ctypes
import json
import os
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

_PR_GET_CHILD_SUBREAPER = 37


def _forked() -> str:
    """Compute in a forked child and return how it ended, empty if all went well."""
    torch.set_num_threads(1)
    pid = os.fork()
    if pid == 0:
        right = False
        try:
            right = float((torch.ones(8, 8) @ torch.ones(8, 8)).sum()) == 512.0
        finally:
            os._exit(int(not right))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"a forked child that multiplies matrices ended with status {status}" if status else ""


def _batch_scheduling() -> str:
    """Ask for the scheduling that ranks use, and return why it is refused, empty if it is not."""
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _subreaper() -> str:
    """Return why the kernel does not know child subreapers, empty if it does.

    Child subreapers keep orphaned processes from being left behind.
    """
    flag = ctypes.c_int()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(flag)):
        return os.strerror(ctypes.get_errno())
    return ""


def examined() -> dict[str, Any]:
    """Return all facts, as `facts.TorchFacts` takes them."""
    offered = dist.is_available()
    built_for = [
        f"{name} {release}"
        for name in ("cuda", "hip")
        if (release := getattr(torch.version, name, None))
    ]
    asked = {
        name: getattr(dist, f"is_{name}_available", None)
        for name in ("gloo", "nccl", "mpi", "ucc", "xccl")
    }
    return {
        "version": torch.__version__,
        "numpy": np.__version__,
        "debug": bool(torch.version.debug),
        "built_for": " ".join(built_for) or "CPU",
        "backends": [
            name
            for name, available in asked.items()
            if offered and available is not None and available()
        ],
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208 - names alone are counted
        "forked": _forked(),
        "subreaper": _subreaper(),
        "batch_scheduling": _batch_scheduling(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(examined()) + "\n")
