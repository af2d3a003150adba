"""The batch sampler of bucketsampler, over samples of three buckets."""

from typing import Any

from bare import load


def sampler(
    dataset: Any,
    num_replicas: int,
    rank: int,
    *,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    seed: int,
) -> Any:
    """Return the batch sampler of a rank."""
    return load("bucketsampler.torch.sampler").BucketBatchSampler(
        [index % 3 for index in range(len(dataset))],
        batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        num_replicas=num_replicas,
        rank=rank,
        seed=seed,
    )
