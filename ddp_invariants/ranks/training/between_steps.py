"""What a program does between two steps, besides training, to a module and its optimizer."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ddp_invariants.cases.program import BetweenSteps, BetweenStepsKind
from ddp_invariants.ranks.training.model import Replica


def stateful(wrapped: Any, replica: nn.Module) -> Any:
    """What a state is saved of and loaded into: the wrapper where it has one, or the module."""
    has_state = all(
        callable(getattr(wrapped, name, None)) for name in ("state_dict", "load_state_dict")
    )
    return wrapped if has_state else replica


@torch.no_grad()
def cast_and_back(module: nn.Module) -> None:
    """Parameters to float64 (or complex128) and back to what they were, as around an export; no value changes."""
    for parameter in module.parameters():
        dtype = parameter.dtype
        wider = torch.complex128 if dtype.is_complex or dtype == torch.float64 else torch.float64
        parameter.data = parameter.data.to(wider)
        parameter.data = (
            parameter.data.to(dtype) if dtype != torch.float64 else parameter.data.real.contiguous()
        )


@torch.no_grad()
def write(buffers: Iterable[Tensor]) -> None:
    """Values of the program's own into buffers, whatever they hold."""
    for buffer in buffers:
        buffer.fill_(0.25 if buffer.is_floating_point() else 5)


def assign(module: Any) -> None:
    """Load a module's own state into it, as new tensors of the same strides and values."""
    module.load_state_dict(deepcopy(module.state_dict()), assign=True)


def lower(kind: BetweenStepsKind, optimizer: Any) -> None:
    """A quarter of the learning rate, or half of momentum and weight decay, from now on."""
    factors = {"lr": 4} if kind == "learning rate" else {"momentum": 2, "weight_decay": 2}
    for group in optimizer.param_groups:
        group.update(
            {name: group[name] / factor for name, factor in factors.items() if name in group}
        )


def plainly(action: BetweenSteps, module: Replica, optimizer: torch.optim.Optimizer) -> None:
    """What an interlude comes to where nothing is wrapped: the others change nothing there."""
    if action.kind in ("learning rate", "decay"):
        lower(action.kind, optimizer)
    elif action.freezes:
        module.freeze(action.layer, frozen=action.kind == "freeze")
