"""The check of a sampler's indices for a dataset whose length is not the case's.

Words: N the old length, M the present one, W world size, T indices of all ranks together.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from ddp_invariants.cases.shard_case import ShardCase
from ddp_invariants.invariants.dealing import BATCHES, Fit, repeats_for, total_for
from ddp_invariants.invariants.sampler_view import ShardView
from ddp_invariants.records.indices import array_of


def misfit(
    view: ShardView, samples: int, shards: Sequence[Sequence[int]], lengths: Sequence[list[int]]
) -> str:
    """Return why the ranks' indices fit neither length; empty if they fit one.

    A sampler may deal exactly what it deals without the change. Otherwise its indices are the
    present ones, dealt right to the places of either length: T is that of N or of M.
    `torch.utils.data.DistributedSampler` deals the M samples to the places of N, or raises.

    Args:
        view: The case, and what the sampler deals without a change.
        samples: The present length M.
        shards: The indices of each rank.
        lengths: The `len(sampler)` of each rank in a list; an empty list without a `len`.
    """
    counts = [len(shard) for shard in shards]
    for rank, length in enumerate(lengths):
        if length not in ([], [counts[rank]]):
            return f"len(sampler) is {length[0]} on rank {rank}, which yields {counts[rank]}"
    if list(shards) == view.answer["shards"][-1]:
        return ""
    batches = view.answer.get("in_batches") and view.case.data.drop_last
    fits: tuple[Fit, ...] = (view.declared.padding,)
    if batches and view.declared.padding == "wrap":
        fits += BATCHES
    return _misdealt(view.case, fits, samples, shards)


def misfit_at_the_start(
    view: ShardView, samples: int, starts: Sequence[Sequence[int]], lengths: Sequence[list[int]]
) -> str:
    """Return why the ranks' first indices of a dataset do not fit together; empty if they do.

    Args:
        view: The case.
        samples: The length of the dataset.
        starts: The first indices of each rank.
        lengths: The `len(sampler)` of each rank in a list; an empty list without a `len`.
    """
    padding = view.padding
    total = total_for(samples, view.case, padding)
    told = [length for known in lengths for length in known]
    if padding not in ("none", "own", "endless"):
        if len({len(start) for start in starts}) > 1:
            return "some ranks yield fewer indices than others"
        if told and (len(set(told)) > 1 or told[0] * view.case.world_size != total):
            return f"len(sampler) is {told}; all ranks together yield {total} indices"
    indices, times = np.unique(
        np.concatenate([array_of(start) for start in starts]), return_counts=True
    )
    if not len(indices):
        return "" if told else "no rank yields an index"
    if not (indices[0] >= 0 and indices[-1] < samples):
        return f"an index lies outside the {samples} samples"
    repeated = int(times.sum()) - len(indices)
    if padding not in ("own", "endless") and repeated > max(total - samples, 0):
        return f"{repeated} of these indices are repetitions; {max(total - samples, 0)} are padding"
    return ""


def _misdealt(
    case: ShardCase, fits: Sequence[Fit], samples: int, shards: Sequence[Sequence[int]]
) -> str:
    if "own" in fits:
        return ""
    counts, both = [len(shard) for shard in shards], (case.data.samples, samples)
    totals = {total_for(n, case, fit) for n in both for fit in fits}
    # Of whole batches, some indices may be padding. Otherwise padding follows all samples.
    padding = (
        max(repeats_for(n, case, fit) for n in both for fit in fits) if BATCHES[1] in fits else 0
    )
    total = sum(counts)
    if len(set(counts)) > 1 and "none" not in fits:
        return "the ranks yield different numbers of indices"
    if total not in totals:
        return f"the ranks yield {total} indices; the lengths allow {sorted(totals)}"
    indices, times = np.unique(
        np.concatenate([array_of(shard) for shard in shards]), return_counts=True
    )
    if len(indices) and not (indices[0] >= 0 and indices[-1] < samples):
        return f"an index lies outside the {samples} samples"
    if not min(total, samples) - padding <= len(indices) <= min(total, samples):
        return f"they hold {len(indices)} distinct indices of {samples} samples"
    most = ceil((total + padding) / samples)
    return f"an index occurs more than {most} times" if times.max(initial=0) > most else ""
