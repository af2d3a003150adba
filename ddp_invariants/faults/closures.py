"""Optimizers that average gradients in their step, and take a closure that computes them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ddp_invariants.faults._outer import Outer
from ddp_invariants.faults._start import broadcast

_Closure = Callable[[], Any]


class _Averages(Outer):
    """An optimizer that averages the gradients before another optimizer steps."""

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.module = module

    def step(self, closure: _Closure | None = None) -> Any:
        loss = None if closure is None else self._loss(closure)
        self._average()
        self.optimizer.step()
        return loss

    def _loss(self, closure: _Closure) -> Any:
        with torch.enable_grad():
            return closure()

    @torch.no_grad()
    def _average(self) -> None:
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                own = parameter.grad
                total = torch.zeros_like(parameter) if own is None else own
                total = total.contiguous()
                dist.all_reduce(total)
                parameter.grad = torch.empty_like(parameter).copy_(total / dist.get_world_size())


_DECLARES = {
    "gradients": "hidden",
    "unsupported": ("unused", "sparse", "nonfinite", "subgroup"),
}


def _made(module: nn.Module, optimizer: _Averages) -> tuple[nn.Module, _Averages]:
    broadcast([*module.parameters(), *module.buffers()])
    return module, optimizer


def averages_what_the_closure_computes(
    module: nn.Module, optimizer: Optimizer
) -> tuple[nn.Module, _Averages]:
    """Right: the step calls the closure, then averages the gradients, and then updates."""
    return _made(module, _Averages(module, optimizer))


class _AveragesFirst(_Averages):
    def step(self, closure: _Closure | None = None) -> Any:
        self._average()
        return self.optimizer.step(closure)


def averages_before_the_closure(
    module: nn.Module, optimizer: Optimizer
) -> tuple[nn.Module, _Averages]:
    """Gradients are averaged before the closure runs, which computes new ones
    (similar: horovod 0.28.1, DistributedOptimizer.step).

    CALL-4: own local gradient.
    """
    return _made(module, _AveragesFirst(module, optimizer))


class _DropsTheLoss(_Averages):
    def step(self, closure: _Closure | None = None) -> None:
        super().step(closure)


def drops_the_loss(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _Averages]:
    """Nothing is returned, although the closure returned the loss (no public incident found).

    CALL-4: does not return the loss.
    """
    return _made(module, _DropsTheLoss(module, optimizer))


class _CallsItAgain(_Averages):
    def step(self, closure: _Closure | None = None) -> Any:
        if closure is not None:
            self._loss(closure)
        return super().step(closure)


def calls_the_closure_again(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _Averages]:
    """Every closure is called to have gradients, and then once more (no public incident found).

    CALL-4: does not call its closure once.
    """
    return _made(module, _CallsItAgain(module, optimizer))


for _function in (
    averages_what_the_closure_computes,
    averages_before_the_closure,
    drops_the_loss,
    calls_the_closure_again,
):
    _function.declares = _DECLARES  # type: ignore[attr-defined]  # a function may have attributes
