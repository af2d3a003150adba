"""torchvision's DistributedSampler fails an assertion if the padding needs a sample twice."""

import importlib

import torch

try:
    samplers = importlib.import_module("torchvision.datasets.samplers")
except RuntimeError:  # PyPI's build does not load without CUDA; the sampler does not need it.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
    samplers = importlib.import_module("torchvision.datasets.samplers")

for replicas in (2, 3):
    wanted = list(torch.utils.data.DistributedSampler(range(1), replicas, 0, shuffle=False))
    try:
        got = list(samplers.DistributedSampler(range(1), replicas, 0))
    except AssertionError:
        got = "AssertionError when iterated"
    print(f"1 sample, {replicas} replicas: {got}, torch's own sampler yields {wanted}")
