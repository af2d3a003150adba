"""The samplers of Determined, which name the number of ranks `num_workers`."""

from typing import Any

from bare import load


def samples(sampler: Any, world_size: int, rank: int) -> Any:
    """Return the sampler of a rank over a sampler."""
    return load("determined.pytorch.samplers").DistributedSampler(sampler, world_size, rank)


def batches(batch_sampler: Any, world_size: int, rank: int) -> Any:
    """Return the batch sampler of a rank over a batch sampler."""
    library = load("determined.pytorch.samplers")
    return library.DistributedBatchSampler(batch_sampler, world_size, rank)
