"""The conditions of right shards of one epoch, in one check without words for a diagnosis.

Words: N dataset length, W world size; total = W * ceil(N / W), or W * floor(N / W) with drop_last.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from ddp_invariants.cases.shard_case import ShardCase
from ddp_invariants.implementation.declarations import Padding
from ddp_invariants.records.indices import array_of


def total_of(case: ShardCase, padding: Padding) -> int:
    """Return the number of indices of all ranks together."""
    return total_for(case.data.samples, case, padding)


def total_for(n: int, case: ShardCase, padding: Padding) -> int:
    """Return the number of indices that all ranks together yield of n samples."""
    unit = case.world_size
    if padding in ("none", "own") and not case.data.drop_last:
        return n
    if padding == "batch":
        unit *= case.data.batch_size
    return unit * (n // unit if case.data.drop_last else -(-n // unit))


def by_batches(case: ShardCase, padding: Padding, shards: Sequence[Sequence[int]]) -> Padding:
    """Return the padding of a sampler that yields batches.

    `drop_last` may mean for it what it means for `torch.utils.data.BatchSampler`: to drop a short
    batch. Then each rank holds whole batches, as if `batch` were declared.
    """
    whole = padding == "wrap" and case.data.drop_last
    return "batch" if whole and sum(map(len, shards)) == total_of(case, "batch") else padding


def first_wrong(case: ShardCase, padding: Padding, shards: Sequence[Sequence[int]]) -> str:
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
    if distinct != (total if data.drop_last else n):
        return "SHARD-2"
    most = 1 if data.drop_last or not n else ceil(total / n)
    allowed = 0 if data.drop_last else total - n
    wrong = len(flat) - distinct > allowed or counts.max(initial=0) > most
    return "SHARD-3" if wrong else ""
