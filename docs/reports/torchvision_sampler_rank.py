"""torchvision's DistributedSampler accepts ranks that do not exist."""

import importlib

import torch

try:
    samplers = importlib.import_module("torchvision.datasets.samplers")
except RuntimeError:  # PyPI's build does not load without CUDA; the sampler does not need it.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
    samplers = importlib.import_module("torchvision.datasets.samplers")

for rank in (-1, 2):
    sampler = samplers.DistributedSampler(range(4), num_replicas=2, rank=rank)
    try:
        print(f"rank {rank} of 2: {list(sampler)}, expected an error when made")
    except AssertionError:
        print(f"rank {rank} of 2: AssertionError when iterated, expected an error when made")
