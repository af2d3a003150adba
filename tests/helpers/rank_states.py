"""Scripts in which ranks change the state of their process while other ranks run."""

import os
import random
import sys
import threading
import warnings
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from worlds import Notes, Script

_deterministic: Any = torch.utils.deterministic
_sys: Any = sys


def generators(note: Notes) -> None:
    """Draw random numbers, with other ranks' draws in between."""
    rank = note.rank
    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)  # noqa: NPY002 - implementations use this generator
    for step in range(3):
        dist.barrier()
        for _ in range(rank):
            torch.rand(3)
            random.random()
            np.random.rand()  # noqa: NPY002
        note(f"torch {step}", lambda: torch.rand(2))
        note(f"normal {step}", lambda: torch.randn(2))
        note(f"random {step}", lambda: [random.random(), random.gauss(0, 1)])
        note(f"numpy {step}", lambda: [float(np.random.rand()), float(np.random.randn())])  # noqa: NPY002
        note(f"seeds {step}", torch.initial_seed)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        dist.barrier()
        note("forked", lambda: torch.rand(1))
    note("after the fork", lambda: torch.rand(1))


def environment(note: Notes) -> None:
    """Change environment variables."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MINE", "HOME")
    note("at first", lambda: [os.environ.get(name) for name in names[:5]])
    if note.rank:
        os.environ["MINE"] = str(note.rank)
    else:
        os.environ["HOME"] = "changed"
    dist.barrier()
    note("mine", lambda: [os.environ.get("MINE"), os.environ.get("HOME") == "changed"])
    dist.barrier()
    os.environ.pop("MINE", None)
    os.putenv("MINE", "put")
    dist.barrier()
    note("gone", lambda: os.environ.get("MINE"))


def told(note: Notes) -> None:
    """Catch and filter warnings while other ranks warn."""

    def caught() -> Any:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            dist.barrier()
            warnings.warn(f"rank {note.rank}", stacklevel=1)
            dist.barrier()
            for _ in range(note.rank):
                warnings.warn("again", stacklevel=1)
            dist.barrier()
        return [str(warning.message) for warning in seen]

    def raised() -> Any:
        warnings.simplefilter("error" if note.rank else "ignore")
        dist.barrier()
        warnings.warn("raised or not", stacklevel=1)
        return "ignored"

    note("caught", caught)
    note("raised", raised)
    warnings.simplefilter("ignore")


def settings(note: Notes) -> None:
    """Change settings of torch and Python."""
    rank = note.rank

    def look() -> Any:
        return [
            str(torch.get_default_dtype()),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.is_anomaly_enabled(),
            torch.get_float32_matmul_precision(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            str(torch.get_autocast_dtype("cpu")),
            str(torch.get_default_device()),
            _deterministic.fill_uninitialized_memory,
            _sys.excepthook is threading.excepthook,
            str(torch.tensor(1.0).dtype),
        ]

    note("at first", look)
    if rank == 1:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.autograd.set_detect_anomaly(True)
        torch.set_float32_matmul_precision("medium")
        _deterministic.fill_uninitialized_memory = False
        _sys.excepthook = threading.excepthook
    dist.barrier()
    note("after rank 1", look)
    dist.barrier()
    with torch.no_grad() if rank else torch.enable_grad():
        dist.barrier()
        note("without gradients", look)
    with torch.autocast("cpu", torch.bfloat16, enabled=rank == 1):
        dist.barrier()
        note(
            "autocast",
            lambda: [look(), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16],
        )
    with torch.inference_mode(rank == 1):
        dist.barrier()
        note("inference", look)
    with torch.device("meta" if rank == 1 else "cpu"):
        torch.zeros(1)
    dist.barrier()
    note("at last", look)


def groups(note: Notes) -> None:
    """Make groups in ranks that have made different numbers of groups."""
    rank = note.rank
    world: Any = dist.group.WORLD
    note("world", lambda: [world.rank(), world.group_name, dist.get_rank()])
    mine = [dist.new_group([peer]) for peer in range(note.size)][rank]
    dist.barrier()
    note("names", lambda: sorted(dist.distributed_c10d._world.pg_names.values()))
    note("mine", lambda: [mine.size(), dist.get_process_group_ranks(mine)])
    note("count", lambda: dist.distributed_c10d._world.group_count)
    if rank == 1:
        dist.destroy_process_group(mine)
    dist.barrier()
    note("left", lambda: len(dist.distributed_c10d._world.pg_map))
    note("initialised", dist.is_initialized)


SCRIPTS: dict[str, Script] = {
    script.__name__: script for script in (generators, environment, told, settings, groups)
}
