"""The sampler of torchvision, on a machine without CUDA, too."""

import importlib

import torch

try:
    samplers = importlib.import_module("torchvision.datasets.samplers")
except RuntimeError:
    # PyPI's build does not load without CUDA. The sampler does not need the build.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
    samplers = importlib.import_module("torchvision.datasets.samplers")

DistributedSampler = samplers.DistributedSampler
