"""A fast check of one epoch's shards: it names the first of SHARD-1 to SHARD-3 that fails, and no cause.

Words: N dataset length, W world size; total = W * ceil(N / W), or W * floor(N / W) with drop_last.
"""

from collections.abc import Sequence
from math import ceil
from typing import Literal

import numpy as np

from ddp_invariants.cases.shard_case import ShardCase
from ddp_invariants.implementation.declarations import Padding
from ddp_invariants.records.indices import array_of

Fit = Padding | Literal["padded batches"]
"""How shards become equal. `padded batches`: padded by `wrap`, then short batches are dropped."""
BATCHES: tuple[Fit, ...] = ("batch", "padded batches")
"""What `drop_last` may mean for a sampler that yields batches, besides dropping indices.

It may be the argument of `torch.utils.data.BatchSampler` alone, or of its inner sampler, too.
"""


def total_of(case: ShardCase, fit: Fit) -> int:
    """Return the number of indices of all ranks together."""
    return total_for(case.data.samples, case, fit)


def total_for(n: int, case: ShardCase, fit: Fit) -> int:
    """Return the number of indices that all ranks together yield of n samples."""
    unit, size = case.world_size, case.data.batch_size
    if fit == "padded batches":
        return unit * (-(-n // unit) // size * size)
    if fit in ("none", "own") and not case.data.drop_last:
        return n
    if fit == "batch":
        unit *= size
    return unit * (n // unit if case.data.drop_last else -(-n // unit))


def repeats_for(n: int, case: ShardCase, fit: Fit) -> int:
    """Return how many of the indices of n samples may be repetitions."""
    if fit == "padded batches":
        return -n % case.world_size
    return 0 if case.data.drop_last else max(0, total_for(n, case, fit) - n)


def fit_of_batches(case: ShardCase, padding: Padding, shards: Sequence[Sequence[int]]) -> Fit:
    """Return how the shards of a sampler that yields batches become equal."""
    if padding != "wrap" or not case.data.drop_last:
        return padding
    flat = [index for shard in shards for index in shard]
    repeats = len(flat) - len({*flat})
    return next(
        (
            fit
            for fit in BATCHES
            if len(flat) == total_of(case, fit)
            and repeats <= repeats_for(case.data.samples, case, fit)
        ),
        padding,
    )


def first_wrong(case: ShardCase, padding: Fit, shards: Sequence[Sequence[int]]) -> str:
    """Return the first rule that the shards of an epoch violate; empty if they are right.

    These are SHARD-1 (without `len`), SHARD-2 and SHARD-3.
    """
    data, total = case.data, total_of(case, padding)
    n, lengths = data.samples, [len(shard) for shard in shards]
    flat = np.concatenate([array_of(shard) for shard in shards])
    exact = padding == "none"
    uneven = max(lengths) > ceil(n / case.world_size) if exact else len(set(lengths)) > 1
    uneven = uneven and padding != "own"
    if uneven or (len(flat) and not (flat.min() >= 0 and flat.max() < n)):
        return "SHARD-1"
    if padding == "own":
        return ""
    counts = np.bincount(flat, minlength=n) if len(flat) else np.zeros(n, dtype=np.int64)
    distinct = np.count_nonzero(counts)
    repeats = repeats_for(n, case, padding)
    if not (total - repeats <= distinct <= total if data.drop_last else distinct == n):
        return "SHARD-2"
    most = ceil((n + repeats) / n) if n else 1
    wrong = len(flat) - distinct > repeats or counts.max(initial=0) > most
    return "SHARD-3" if wrong else ""
