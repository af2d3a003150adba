"""The public names of an implementation and of the parts of torch that a case uses."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader

from ddp_invariants.ranks.driving.ddp import anywhere
from ddp_invariants.ranks.groups import distributed

PARTS: dict[str, Any] = {
    "torch.utils.data.DataLoader": DataLoader,
    "torch.optim.SGD": torch.optim.SGD,
    "torch.optim.Adam": torch.optim.Adam,
    "torch.optim.AdamW": torch.optim.AdamW,
    "torch.amp.GradScaler": torch.amp.GradScaler,
    "torch.autocast": torch.autocast,
    "torch.nn.utils.clip_grad_norm_": nn.utils.clip_grad_norm_,
    "torch.nn.utils.clip_grad_value_": nn.utils.clip_grad_value_,
    "torch.distributed.init_process_group": distributed._init_process_group,
    "torch.distributed.destroy_process_group": distributed._destroy_process_group,
    "torch.distributed.new_group": dist.new_group,
    "torch.distributed.all_reduce": dist.all_reduce,
    "torch.distributed.broadcast": dist.broadcast,
    "torch.distributed.all_gather": dist.all_gather,
    "torch.distributed.barrier": dist.barrier,
    "torch.distributed.Work": dist.Work,
    "torch.distributed.ReduceOp": dist.ReduceOp,
    "torch.distributed.algorithms.Join": Join,
    "torch.utils.checkpoint.checkpoint": torch.utils.checkpoint.checkpoint,
    "torch.nn.Module": nn.Module,
}
"""The parts of torch that a case uses, by their public names."""
_PLAIN: tuple[type, ...] = (nn.Module, torch.optim.Optimizer, object)
"""Classes whose members are no part of the surface of a class that inherits them."""


def public(*under_test: Any) -> dict[str, str]:
    """Return the signatures of public names.

    Args:
        under_test: The implementations under test; None for none.
    """
    named = {
        f"{thing.__module__}.{thing.__qualname__}": thing
        for thing in under_test
        if hasattr(thing, "__qualname__")
    }
    # The arguments of what is under test are compared one by one (`Description.defaults`).
    return {
        f"{name}{member}": text
        for name, part in {**PARTS, **named}.items()
        for member, text in _members(part)
        if member or part not in named.values()
    }


def _members(part: Any) -> Iterator[tuple[str, str]]:
    """Yield the public members of a class, or a function itself, each with its signature."""
    yield "", _signature(part)
    if not isinstance(part, type):
        return
    inherited = next(
        (plain for plain in _PLAIN if issubclass(part, plain) and part is not plain), object
    )
    for name in dir(part):
        member = inspect.getattr_static(part, name)
        if not name.startswith("_") and member is not inspect.getattr_static(inherited, name, None):
            yield f".{name}", _signature(getattr(part, name, member))


def _signature(thing: Any) -> str:
    """Return the arguments of a callable with their defaults, or the type of another thing."""
    if not callable(thing):
        return type(thing).__name__
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return "callable"
    return f"({', '.join(_mark(each) + each.name + _default(each) for each in parameters)})"


def _mark(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "*"
    return "**" if parameter.kind is parameter.VAR_KEYWORD else ""


def _default(parameter: inspect.Parameter) -> str:
    return (
        "" if parameter.default is parameter.empty else f"={anywhere(repr(parameter.default))}"[:80]
    )
