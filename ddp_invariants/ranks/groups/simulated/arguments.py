"""The arguments of collectives, which torch's versions and callers pass in several ways."""

from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp


def listed(tensors: Any) -> list[Tensor]:
    """Return a list of tensors, also of a single tensor."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def nested(tensors: Any) -> list[Tensor]:
    """Return the list in a list of one list, or the list itself."""
    outer = list(tensors)
    return list(outer[0]) if outer and not isinstance(outer[0], Tensor) else outer


def operation(options: Any, named: Any) -> Any:
    """Return the reduce operation among the arguments; a sum if there is none."""
    for option in (*options, *named.values()):
        found = getattr(option, "reduceOp", option)
        if isinstance(found, ReduceOp | ReduceOp.RedOpType):
            return getattr(found, "op", found)
    return ReduceOp.SUM


def root(options: Any, named: Any) -> int:
    """Return the root among the arguments; rank 0 if there is none."""
    for option in (*options, *named.values()):
        if hasattr(option, "rootRank"):
            return int(option.rootRank)
    return next((option for option in (*options, *named.values()) if type(option) is int), 0)


def waits(options: Any, named: Any) -> bool:
    """Return whether the arguments say that the caller waits at once."""
    return any(getattr(option, "asyncOp", True) is False for option in (*options, *named.values()))
