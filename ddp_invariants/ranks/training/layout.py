"""Strides and alignment of tensors."""

import torch
from torch import Tensor, nn

_CACHE_LINE = 64
"""Bytes; torch aligns its own tensors to it, and its kernels choose their way by alignment."""


_Layout = tuple[torch.Size, tuple[int, ...], int]
"""Shape and strides of a tensor, and its address modulo a cache line."""


def _layout_of(tensor: Tensor) -> _Layout:
    return tensor.shape, tensor.stride(), tensor.data_ptr() % _CACHE_LINE


def _lay_out(module: nn.Module, layouts: list[_Layout]) -> None:
    """Give a replica's parameters the strides and alignment another's have, values unchanged.

    Kernels add up in another order for other strides or alignment, so a wrapper that keeps
    parameters in one flat buffer is bitwise comparable only with a twin whose tensors lie alike.
    """
    for (shape, stride, offset), ours in zip(layouts, module.parameters(), strict=True):
        if ours.shape != shape or _layout_of(ours) == (shape, stride, offset) or not ours.numel():
            continue
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        start = offset // ours.element_size()
        laid_out = torch.zeros(start + extent, dtype=ours.dtype, device=ours.device).as_strided(
            shape, stride, start
        )
        ours.data = laid_out.copy_(ours.detach())
