"""Optimizers with an update of their own, each parameter computed by one rank: Muon in parallel.

Source: Jordan et al. 2024, Muon, https://kellerjordan.github.io/posts/muon. The entries are
adapters, since the optimizer reduces the gradients. They know only the default process group.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_invariants.faults._start import broadcast

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients by which one iteration moves all singular values towards 1."""


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return nearly the orthogonal factor of a real matrix, or any other tensor at norm 1."""
    scaled: Tensor = matrix / (matrix.norm() + 1e-7)
    if matrix.dim() != 2 or matrix.is_complex():
        return scaled
    a, b, c = _QUINTIC
    wide = scaled if matrix.shape[0] <= matrix.shape[1] else scaled.mT
    for _ in range(5):
        square = wide @ wide.mT
        wide = a * wide + (b * square + c * square @ square) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.mT


class _Muon(Optimizer):
    """Muon, for which each parameter has one rank as its owner.

    Args:
        module: The module whose parameters it updates.
        lr: The learning rate.
    """

    def __init__(self, module: nn.Module, lr: float) -> None:
        trained = [p for p in module.parameters() if p.requires_grad]
        super().__init__(trained, {"lr": lr, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            raise NotImplementedError("a step takes no closure")
        rates = [(parameter, group) for group in self.param_groups for parameter in group["params"]]
        for number, (parameter, group) in enumerate(rates):
            if parameter.requires_grad and parameter.numel():
                self.update(parameter, group, number % dist.get_world_size())

    def update(self, parameter: Tensor, group: dict[str, Any], owner: int) -> None:
        """Update a parameter on its owner, and hand the new values out."""
        gradient = self.mean(parameter, owner)
        if dist.get_rank() == owner:
            self.move(parameter, gradient, group)
        self.hand_out(parameter, owner)

    def mean(self, parameter: Tensor, owner: int) -> Tensor:
        """Return the mean gradient, which only the owner needs."""
        total = self.own(parameter)
        dist.reduce(total, dst=owner)
        return total / dist.get_world_size()

    def own(self, parameter: Tensor) -> Tensor:
        """Return a copy of this rank's gradient; zeros if it has none."""
        if parameter.grad is None:
            return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        return gradient.clone(memory_format=torch.contiguous_format)

    def move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Make the update."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        direction = gradient.lerp(momentum, group["momentum"])
        parameter.add_(_orthogonal(direction), alpha=-group["lr"])

    def hand_out(self, parameter: Tensor, owner: int) -> None:
        """Give every rank the owner's values, which travel through a contiguous copy."""
        whole = parameter.detach().contiguous()
        dist.broadcast(whole, src=owner)
        parameter.copy_(whole)


class Orthogonal:
    """Right: gradients are reduced to the owner of their parameter, which makes Muon's update and
    broadcasts the parameter.
    """

    declares: ClassVar[dict[str, Any]] = {
        "gradients": "hidden",
        "optimizer": "own",
        "update": "own",
    }
    optimizer: ClassVar[type[_Muon]] = _Muon

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        del context
        broadcast([*module.parameters(), *module.buffers()])
        return module

    def make_optimizer(self, wrapped: nn.Module, context: Any) -> Any:
        return self.optimizer(wrapped, context.lr)


class _OwnersGradient(_Muon):
    def mean(self, parameter: Tensor, owner: int) -> Tensor:
        del owner
        return self.own(parameter)


class UpdatesByTheOwnersGradient(Orthogonal):
    """The owner makes the update with its own gradient, because no call reduces the gradients
    (no public incident found).

    PARAM-7: the ranks' gradients count unequally.
    """

    optimizer = _OwnersGradient


class _WithoutTheLast(_Muon):
    def own(self, parameter: Tensor) -> Tensor:
        gradient = super().own(parameter)
        size = dist.get_world_size()
        return gradient.zero_() if size > 2 and dist.get_rank() == size - 1 else gradient


class CountsTheLastRankAsZero(Orthogonal):
    """From three ranks on, the last rank's gradients count as zero (no public incident found).

    PARAM-7: the ranks' gradients count unequally.
    """

    optimizer = _WithoutTheLast


class _KeepsTheOwners(_Muon):
    def hand_out(self, parameter: Tensor, owner: int) -> None:
        if owner < dist.get_world_size() - 1 or dist.get_world_size() < 3:
            super().hand_out(parameter, owner)


class KeepsTheLastOwnersValues(Orthogonal):
    """From three ranks on, the last owner's parameters are not broadcast (no public incident
    found).

    PARAM-1: parameters differ between ranks.
    """

    optimizer = _KeepsTheOwners


class RestoresItsStart(Orthogonal):
    """Before each batch the parameters become what they were when the module was wrapped, which
    undoes every update on all ranks (no public incident found).

    PARAM-7: every update is undone.
    """

    def wrap(self, module: nn.Module, context: Any) -> nn.Module:
        super().wrap(module, context)
        self.first = [(p, p.detach().clone()) for p in module.parameters() if p.requires_grad]
        return module

    @torch.no_grad()
    def before_batch(self, wrapped: nn.Module, optimizer: Any) -> None:
        del wrapped, optimizer
        for parameter, value in self.first:
            parameter.copy_(value)
