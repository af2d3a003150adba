"""The samplers of FastReID, which are those of Detectron2."""

from typing import Any

from bare import load


def training(length: int, *, shuffle: bool, seed: int) -> Any:
    """Return the endless sampler of this process."""
    return load("fastreid.data.samplers.data_sampler").TrainingSampler(length, shuffle, seed)


def inference(length: int) -> Any:
    """Return the sampler that deals a slice to this process."""
    return load("fastreid.data.samplers.data_sampler").InferenceSampler(length)
