"""Samplers of transformers that need the lengths of the samples."""

import importlib
from typing import Any

from ddp_invariants.implementation.adapters import preload

preload("transformers.trainer_pt_utils")


def _library() -> Any:
    return importlib.import_module("transformers.trainer_pt_utils")


def _lengths(samples: int) -> list[int]:
    return [5 + 7 * index % 11 for index in range(samples)]


def by_length(
    n: int, num_replicas: int, rank: int, batch_size: int, seed: int, *, drop_last: bool
) -> Any:
    """Group samples of similar lengths."""
    return _library().DistributedLengthGroupedSampler(
        batch_size,
        num_replicas=num_replicas,
        rank=rank,
        seed=seed,
        drop_last=drop_last,
        lengths=_lengths(n),
    )


def balanced(
    n: int, dp_size: int, rank: int, batch_size: int, seed: int, *, shuffle: bool, drop_last: bool
) -> Any:
    """Balance the cost of the ranks, with one micro-batch in each step."""
    return _library().BatchRebalanceSampler(
        _lengths(n), batch_size * dp_size, dp_size, 1, shuffle, seed, rank, drop_last
    )
