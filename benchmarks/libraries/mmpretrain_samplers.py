"""The samplers of mmpretrain."""

from typing import Any

from bare import load

in_order = load("mmpretrain.datasets.samplers.sequential")
repeat_aug = load("mmpretrain.datasets.samplers.repeat_aug")


def sequential(dataset: Any, *, seed: int) -> Any:
    """Return the sampler that yields slices of the dataset in order."""
    return in_order.SequentialSampler(subsample_type="sequential", dataset=dataset, seed=seed)


def repeated(dataset: Any, *, shuffle: bool, seed: int) -> Any:
    """Return the sampler that deals three copies of each sample to the ranks."""
    return repeat_aug.RepeatAugSampler(dataset, shuffle=shuffle, seed=seed)
