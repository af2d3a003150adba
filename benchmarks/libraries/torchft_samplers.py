"""The sampler of torchft, with replica groups of one rank each."""

from typing import Any

from bare import load


def sampler(
    dataset: Any, world_size: int, rank: int, *, shuffle: bool, seed: int, drop_last: bool
) -> Any:
    """Return the sampler of a rank that is a replica group."""
    library = load("torchft.data")
    return library.DistributedSampler(
        dataset,
        replica_rank=rank,
        num_replica_groups=world_size,
        group_rank=0,
        num_replicas=1,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
    )
