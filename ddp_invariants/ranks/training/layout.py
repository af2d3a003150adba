"""Strides and alignment of tensors."""

import torch
from torch import Tensor, nn

_CACHE_LINE = 64
"""Bytes. torch aligns its own tensors to a cache line, and its kernels differ by alignment."""
_ON_DEVICE = 256
"""Bytes of the alignment by which torch chooses a matrix product on a CUDA device (`CUDABlas.cpp`)."""


Layout = tuple[torch.Size, tuple[int, ...], int]
"""Shape and strides of a tensor, and its address modulo the alignment that kernels look at."""


def layout_of(tensor: Tensor) -> Layout:
    """Return a tensor's layout; of a DTensor that of the local part."""
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    alignment = _CACHE_LINE if tensor.device.type == "cpu" else _ON_DEVICE
    return tensor.shape, tensor.stride(), tensor.data_ptr() % alignment


def lay_out(module: nn.Module, layouts: list[Layout]) -> None:
    """Give a module's parameters these strides and alignments, and keep their values.

    Kernels add up in another order for other strides or alignment. A wrapper that keeps parameters
    in one flat buffer is therefore bitwise comparable only with a twin whose tensors lie alike.
    """
    for (shape, stride, offset), parameter in zip(layouts, module.parameters(), strict=True):
        if (
            parameter.shape != shape
            or layout_of(parameter) == (shape, stride, offset)
            or not parameter.numel()
        ):
            continue
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        start = offset // parameter.element_size()
        laid_out = torch.zeros(
            start + extent, dtype=parameter.dtype, device=parameter.device
        ).as_strided(shape, stride, start)
        parameter.data = laid_out.copy_(parameter.detach())
