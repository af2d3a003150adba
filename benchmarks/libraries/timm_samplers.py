"""The samplers of timm, on a machine without CUDA, too."""

import torch

try:
    import torchvision  # type: ignore[import-not-found] # noqa: F401 - timm needs it
except RuntimeError:
    # PyPI's build does not load without CUDA. The samplers do not need the build.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")

from timm.data.distributed_sampler import (  # type: ignore[import-not-found] # noqa: F401 - rows name them
    OrderedDistributedSampler,
    RepeatAugSampler,
)
