"""Samplers of transformers that need the lengths of the samples."""

from typing import Any

from transformers.trainer_pt_utils import (  # type: ignore[import-not-found] # only judged here
    BatchRebalanceSampler,
    DistributedLengthGroupedSampler,
)


def _lengths(samples: int) -> list[int]:
    return [5 + 7 * index % 11 for index in range(samples)]


def by_length(
    n: int, num_replicas: int, rank: int, batch_size: int, seed: int, *, drop_last: bool
) -> Any:
    """Group samples of similar lengths."""
    return DistributedLengthGroupedSampler(
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
    return BatchRebalanceSampler(
        _lengths(n), batch_size * dp_size, dp_size, 1, shuffle, seed, rank, drop_last
    )
