"""timm's OrderedDistributedSampler and RepeatAugSampler accept ranks that do not exist."""

import torch

try:
    import torchvision  # noqa: F401 - timm needs it
except RuntimeError:  # PyPI's build does not load without CUDA; the samplers do not need it.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")

from timm.data.distributed_sampler import OrderedDistributedSampler, RepeatAugSampler

for kind in (OrderedDistributedSampler, RepeatAugSampler):
    for rank in (-1, 2):
        sampler = kind(range(4), num_replicas=2, rank=rank)
        print(f"{kind.__name__}, rank {rank} of 2: {list(sampler)}, expected an error when made")
