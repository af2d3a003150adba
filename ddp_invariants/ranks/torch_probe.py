"""What only a process that has imported torch can say of a machine, as JSON: `python -m ddp_invariants.ranks.torch_probe`."""

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
    """Compute in a forked child; what became of it, empty where all went well."""
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
    """Ask for what ranks ask for; why it is not to be had, empty where it is."""
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _subreaper() -> str:
    """Whether the kernel knows what keeps orphans from being left behind; why not, empty where it does."""
    found = ctypes.c_int()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found)):
        return os.strerror(ctypes.get_errno())
    return ""


def examined() -> dict[str, Any]:
    """All of it, as `doctor.Torch` takes it."""
    offered = dist.is_available()
    built_for = [
        f"{name} {found}"
        for name in ("cuda", "hip")
        if (found := getattr(torch.version, name, None))
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
