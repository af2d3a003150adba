"""A meeting of two ranks at a file: the part that the scripts in this folder share."""

import os
import sys
import tempfile
from collections.abc import Callable

import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def _rank(rank: int, path: str, work: Callable[[int], None]) -> None:
    store = dist.FileStore(path, 2)  # type: ignore[attr-defined]  # exported without a stub
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    work(rank)
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # On a normal exit, gloo's threads abort some of the processes.


def in_two_ranks(work: Callable[[int], None]) -> None:
    """Run a function on two gloo ranks."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (f"{folder}/store", work), nprocs=2)
