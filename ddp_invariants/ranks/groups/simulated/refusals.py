"""Tensors that torch or gloo refuses to send, and those that no simulation can send."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_invariants.ranks.groups.simulated.gloo import unconnected_gloo
from ddp_invariants.ranks.groups.simulated.turns import Turns

_SENT = frozenset(
    (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
    )
)
"""The dtypes that torch passes to gloo in every collective."""
_QUESTIONS: dict[str, Callable[[Any, Tensor], dist.Work]] = {
    "broadcast": lambda group, tensor: group.broadcast([tensor], dist.BroadcastOptions()),
    "reduce": lambda group, tensor: group.allreduce([tensor], dist.AllreduceOptions()),
    "gather": lambda group, tensor: group.gather([[tensor]], [tensor], dist.GatherOptions()),
}
"""A call for each kind of collective; torch passes the same dtypes to all calls of a kind."""


def sends(kind: str, dtype: torch.dtype) -> bool:
    """Return whether torch passes a dtype to gloo in a kind of collective.

    The answer depends on torch's version for complex numbers. torch 2.6 passes them in no
    collective, and torch 2.13 in sums and broadcasts.
    """
    if dtype in _SENT:
        return True
    if kind != "broadcast":
        kind = "reduce" if "reduce" in kind else "gather"
    return _asked(kind, dtype)


@cache
def _asked(kind: str, dtype: torch.dtype) -> bool:
    """Return whether a gloo group of one rank sends a dtype."""
    try:
        _QUESTIONS[kind](unconnected_gloo(0, 1), torch.zeros(1, dtype=dtype)).wait()
    except RuntimeError as error:
        return "Invalid scalar type" not in str(error)
    return True


def require_sent(turns: Turns, kind: str, tensors: Sequence[Tensor]) -> None:
    """Raise as torch and gloo do if they refuse to send such tensors.

    Raises:
        NotImplementedError: The layout has no such collective, or there is no tensor.
        RuntimeError: gloo knows no such dtype.
        NotSimulated: Only gloo can show the result.
    """
    if not tensors:
        raise NotImplementedError(f"There were no tensor arguments to c10d::{kind}_")
    for tensor in tensors:
        sparse = tensor.layout != torch.strided
        if tensor.is_quantized or (sparse and kind != "allreduce"):
            raise NotImplementedError(f"Could not run 'c10d::{kind}_' with such a tensor: {tensor}")
        if not sends(kind, tensor.dtype):
            raise RuntimeError("Invalid scalar type")
        if tensor.is_conj():
            raise RuntimeError("view_as_real doesn't work on unresolved conjugated tensors")
        if tensor.device.type != "cpu":
            turns.refuse(f"it sends tensors on the device {tensor.device.type}")
        if not sparse and _overlaps(tensor):
            turns.refuse("it sends tensors whose elements share memory", for_good=False)


def _overlaps(tensor: Tensor) -> bool:
    return any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def require_root(kind: str, root: int, size: int) -> None:
    """Raise as gloo does if a root is no rank of the group.

    Raises:
        RuntimeError: It is none.
    """
    if not 0 <= root < size:
        raise RuntimeError(f"ProcessGroupGloo::{kind}: invalid root rank: {root}")


def require_length(kind: str, tensors: Sequence[Tensor], size: int) -> None:
    """Raise as gloo does if a list does not have a tensor for each rank.

    Raises:
        RuntimeError: The list has another length.
    """
    if len(tensors) != size:
        raise RuntimeError(
            f"ProcessGroupGloo::{kind}: invalid tensor list (expected length {size}, got "
            f"{len(tensors)})"
        )


def require_alike(kind: str, tensors: Sequence[Tensor], pattern: Tensor) -> None:
    """Raise as gloo does if tensors have another dtype or shape than a first one.

    Raises:
        RuntimeError: One has.
    """
    for number, tensor in enumerate(tensors):
        if tensor.dtype != pattern.dtype:
            raise RuntimeError(
                f"ProcessGroupGloo::{kind}: invalid tensor type at index {number} "
                f"(expected {pattern.dtype}, got {tensor.dtype})"
            )
        if tensor.shape != pattern.shape:
            raise RuntimeError(
                f"ProcessGroupGloo::{kind}: invalid tensor size at index {number} "
                f"(expected {tuple(pattern.shape)}, got {tuple(tensor.shape)})"
            )


def row_sizes(splits: Sequence[int], tensor: Tensor, size: int) -> list[int]:
    """Return the elements of each rank's part of a tensor; equal parts without splits.

    Args:
        splits: The rows for each rank; empty for equal parts.
        tensor: The tensor.
        size: The number of ranks.

    Raises:
        RuntimeError: The splits do not suit the tensor.
    """
    if not splits:
        return [tensor.numel() // size] * size
    if len(splits) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    rows = tensor.shape[0] if tensor.dim() else 1
    if sum(splits) != rows:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    return [split * (tensor.numel() // max(rows, 1)) for split in splits]
