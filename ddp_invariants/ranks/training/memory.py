"""How many bytes a rank holds: of parameters, gradients and optimizer state, each storage counted once (MEM-1)."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def _storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Bytes by address of the storages behind some tensors; of a DTensor the local part."""
    found = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if isinstance(local, Tensor):
            storage = local.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return found


def _owned(optimizer: Any) -> list[Tensor]:
    """What an optimizer updates, or keeps state for: one that shards may show the module's parameters in its groups."""
    groups = [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]
    held = [*groups, *(key for key in getattr(optimizer, "state", {}) if isinstance(key, Tensor))]
    return [parameter for parameter in held if parameter.requires_grad]


def _states(optimizer: Any) -> list[Tensor]:
    states = getattr(optimizer, "state", {})
    values = [
        value for state in states.values() if isinstance(state, dict) for value in state.values()
    ]
    # A step count is no part of what grows with the model.
    return [value for value in values if isinstance(value, Tensor) and value.dim() > 0]


def gradients(replica: nn.Module, optimizer: Any) -> int:
    """Bytes of gradients, of the module's parameters and of what the optimizer updates."""
    holders = [*replica.parameters(), *_owned(optimizer)]
    return sum(_storages(p.grad for p in holders if p.grad is not None).values())


def parameters_and_state(replica: nn.Module, optimizer: Any) -> tuple[int, int, int]:
    """Bytes of the module's trained parameters, of the optimizer's own copies of parameters, and of its state.

    Frozen ones may stay whole: only what is trained is sharded by every scheme.
    """
    module = _storages(p for p in replica.parameters() if p.requires_grad)
    own = {
        address: size
        for address, size in _storages(_owned(optimizer)).items()
        if address not in module
    }
    return sum(module.values()), sum(own.values()), sum(_storages(_states(optimizer)).values())
