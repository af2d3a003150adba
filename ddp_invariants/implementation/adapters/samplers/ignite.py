"""Samplers of ignite over other samplers."""

import importlib
from typing import Any

from torch.utils.data import RandomSampler

from ddp_invariants.implementation.adapters import preload

preload("ignite.distributed.auto")


def over_random(dataset: Any, num_replicas: int, rank: int) -> Any:
    """Wrap torch's sampler for `shuffle=True`, as `auto_dataloader` does it."""
    library: Any = importlib.import_module("ignite.distributed.auto")
    return library.DistributedProxySampler(RandomSampler(dataset), num_replicas, rank)
