"""The results of simulated collectives, as gloo gives them; sums add in the order of the ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

_OPERATIONS: dict[Any, Any] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}
_OF_INTEGERS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def require_reducible(operation: Any, tensors: Sequence[Tensor]) -> None:
    """Raise as gloo does if it cannot reduce such tensors by an operation.

    Raises:
        RuntimeError: The operation is unknown, or suits no such dtype or layout.
    """
    name = str(operation).rpartition(".")[2]
    if operation not in _OPERATIONS and operation != ReduceOp.AVG:
        raise RuntimeError(f"Cannot use ReduceOp.{name} with Gloo")
    for tensor in tensors:
        exact = not (tensor.is_floating_point() or tensor.is_complex())
        if operation in _OF_INTEGERS and not exact:
            raise RuntimeError(f"Cannot use ReduceOp.{name} with non-integral dtype")
        if operation == ReduceOp.AVG and exact:
            raise RuntimeError(f"result type Float can't be cast to {tensor.dtype}")
        if tensor.is_complex() and operation not in (ReduceOp.SUM, ReduceOp.AVG):
            raise RuntimeError(f"all_reduce does not support ReduceOp.{name} on complex tensors")
        if tensor.layout != torch.strided and operation != ReduceOp.SUM:
            raise RuntimeError("allreduce of sparse tensors only works with ReduceOp.SUM")


def reduced(operation: Any, tensors: Sequence[Tensor]) -> Tensor:
    """Return the reduction of the ranks' tensors."""
    if tensors[0].layout != torch.strided:
        tensors = [tensor.coalesce() for tensor in tensors]
    average = operation == ReduceOp.AVG
    combine = torch.add if average else _OPERATIONS[operation]
    total = tensors[0]
    for tensor in tensors[1:]:
        total = combine(total, tensor)
    return total / len(tensors) if average else total


def parts(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return a tensor's first consecutive parts, of so many elements each."""
    return list(torch.split(tensor.reshape(-1)[: sum(sizes)], list(sizes)))
