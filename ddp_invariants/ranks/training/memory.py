"""Bytes a rank holds: of parameters, gradients and optimizer state, each storage once (MEM-1)."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def _storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Return the bytes of some tensors' storages, by address; of a DTensor the local part."""
    sizes = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if isinstance(local, Tensor):
            storage = local.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sizes


def _owned(optimizer: Any) -> list[Tensor]:
    """Return the tensors that an optimizer updates or keeps state for.

    An optimizer that shards may show the module's parameters in its groups.
    """
    groups = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
    held = [*groups, *(key for key in getattr(optimizer, "state", {}) if isinstance(key, Tensor))]
    return [parameter for parameter in held if parameter.requires_grad]


def _states(optimizer: Any) -> list[Tensor]:
    states = getattr(optimizer, "state", {})
    values = [
        value for state in states.values() if isinstance(state, dict) for value in state.values()
    ]
    # A step count does not grow with the model.
    return [value for value in values if isinstance(value, Tensor) and value.dim() > 0]


def gradients(replica: nn.Module, optimizer: Any) -> int:
    """Return the bytes of all gradients, of the module's and of the optimizer's parameters."""
    holders = [*replica.parameters(), *_owned(optimizer)]
    return sum(_storages(p.grad for p in holders if p.grad is not None).values())


def parameters_and_state(replica: nn.Module, optimizer: Any) -> tuple[int, int, int]:
    """Return the bytes of trained parameters, of the optimizer's own copies, and of its state.

    Frozen parameters may stay whole: every scheme shards only trained ones.
    """
    module = _storages(p for p in replica.parameters() if p.requires_grad)
    own = {
        address: size
        for address, size in _storages(_owned(optimizer)).items()
        if address not in module
    }
    return sum(module.values()), sum(own.values()), sum(_storages(_states(optimizer)).values())
