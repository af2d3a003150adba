"""The batch sampler of FunASR, which takes its rank from torch.distributed alone."""

from typing import Any

from bare import load


def sampler(dataset: Any, batch_size: int, *, shuffle: bool, drop_last: bool) -> Any:
    """Return the batch sampler of this process."""
    library = load("funasr.datasets.audio_datasets.samplers")
    return library.CustomDistributedBatchSampler(
        dataset, batch_size, shuffle=shuffle, drop_last=drop_last
    )
