"""Gloo backends that connect to no other rank, for code that only asks gloo a question."""

import datetime as dt
from functools import cache
from typing import Any

import torch

# These classes are public names of torch.distributed without type stubs.
_c10d: Any = torch._C._distributed_c10d


@cache
def _device() -> tuple[Any, bool]:
    """Return a network device of gloo, and whether a group on it connects only when it sends.

    torch 2.6 has no such devices.
    """
    make = _c10d.ProcessGroupGloo.create_default_device
    try:
        return make(lazy_init=True), True
    except TypeError:
        return make(), False


@cache
def unconnected_gloo(rank: int, world_size: int) -> Any:
    """Return a gloo backend that has connected to no other rank.

    The logger of torch's DDP asks it for its threads. A group of torch 2.15 asks it for rank and
    size. A group of torch 2.6 does not, so one rank is enough where each group connects at once.
    """
    device, lazy = _device()
    options = _c10d.ProcessGroupGloo._Options()
    options._timeout, options._threads, options._devices = dt.timedelta(seconds=1), 1, [device]
    place = (rank, world_size) if lazy else (0, 1)
    return _c10d.ProcessGroupGloo(_c10d.HashStore(), *place, options)


def threads() -> int:
    """Return the number of threads of these backends, which stay for later cases: one each."""
    return unconnected_gloo.cache_info().currsize
