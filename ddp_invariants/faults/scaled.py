"""Optimizers and wrappers beside a loss scaler, which skips the steps whose gradients overflow.

torch's GradScaler unscales gradients and skips steps itself, or it leaves both to an optimizer that
says it supports that. It then hands the optimizer two values. The first is the scale, or None if
the program has unscaled already. The second says if a gradient of this rank is not finite.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_invariants.faults._outer import Outer
from ddp_invariants.faults._start import broadcast
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class _SeesToIt(Outer):
    """An optimizer that steps another optimizer, and unscales gradients and skips steps itself."""

    _step_supports_amp_scaling = True

    def __init__(self, optimizer: Optimizer, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(optimizer)
        self.group = group

    def step(self) -> None:
        # The scaler sets both attributes for a step and removes them afterwards.
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found_inf is not None:
            if self._overflows(found_inf):
                self._skip()
                return
            self._unscale(scale)
        self.optimizer.step()

    def _gradients(self) -> list[Tensor]:
        return [
            parameter.grad
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]

    def _overflows(self, found_inf: Tensor) -> bool:
        return bool(found_inf)

    def _skip(self) -> None:
        pass

    def _unscale(self, scale: Tensor | None) -> None:
        if scale is not None:
            for gradient in self._gradients():
                gradient.mul_(1 / scale.item())


def unscales_and_skips(
    module: nn.Module, optimizer: Optimizer, process_group: dist.ProcessGroup | None = None
) -> tuple[nn.Module, _SeesToIt]:
    """Right: the optimizer unscales gradients and skips steps itself, as torch's fused ones do."""
    return Reference(module, process_group), _SeesToIt(optimizer)


class _Sharded(_SeesToIt):
    """An optimizer that looks for an overflow only in this rank's shard of the parameters."""

    def _overflows(self, found_inf: Tensor) -> bool:
        del found_inf
        mine = self._gradients()[dist.get_rank(self.group) :: dist.get_world_size(self.group)]
        return self._of_all(not all(gradient.isfinite().all() for gradient in mine))

    def _of_all(self, mine: bool) -> bool:
        overflows = torch.tensor(float(mine))
        dist.all_reduce(overflows, dist.ReduceOp.MAX, group=self.group)
        return bool(overflows)


def shares_what_it_finds(
    module: nn.Module, optimizer: Optimizer, process_group: dist.ProcessGroup | None = None
) -> tuple[nn.Module, _SeesToIt]:
    """Right: each rank looks for an overflow in its shard of the parameters, and all ranks share
    the result.
    """
    return Reference(module, process_group), _Sharded(optimizer, process_group)


class _Alone(_Sharded):
    def _of_all(self, mine: bool) -> bool:
        return mine


def keeps_what_it_finds(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """Each rank looks for an overflow in its shard of the parameters and tells no other rank
    (facebookresearch/fairscale#180).

    PARAM-6: a skipped step moves parameters.
    """
    return Reference(module), _Alone(optimizer)


class _First(_SeesToIt):
    def _unscale(self, scale: Tensor | None) -> None:
        self.first = getattr(self, "first", scale)
        super()._unscale(self.first if scale is not None else None)


def unscales_by_the_first(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """Every unscaling divides by the first scale that the optimizer got (no public incident found).

    PARAM-6: by the first step's loss scale.
    """
    return Reference(module), _First(optimizer)


class _Twice(_SeesToIt):
    def _unscale(self, scale: Tensor | None) -> None:
        super()._unscale(scale)
        super()._unscale(scale)


def unscales_twice(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """Gradients are unscaled twice, by a hook and by the step (no public incident found).

    PARAM-6: by the loss scale once more.
    """
    return Reference(module), _Twice(optimizer)


class _Never(_SeesToIt):
    def _unscale(self, scale: Tensor | None) -> None:
        pass


def never_unscales(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """Unscaling is left to the optimizer, which does not do it (a well-known mistake).

    PARAM-6: never unscaled.
    """
    return Reference(module), _Never(optimizer)


class _Advances(_SeesToIt):
    def _skip(self) -> None:
        kept = [
            (parameter, parameter.detach().clone())
            for group in self.param_groups
            for parameter in group["params"]
        ]
        self.optimizer.step()
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)


def advances_its_state(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """In skipped steps parameters stay as they are, but the overflow goes into the momentum
    (LibreYOLO/libreyolo#771).

    PARAM-6: a skipped step changes the optimizer's state.
    """
    return Reference(module), _Advances(optimizer)


class ClearedByTheStep(nn.Module):
    """Gradients are collected in buffers that only an optimizer step clears, so a skipped step
    clears none (a well-known mistake).

    PARAM-6: although no gradient overflows.
    """

    declares = {  # noqa: RUF012 - read, never changed
        "unsupported": ("unused", "in_parts", "accumulation", "never_zeroed")
    }

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        super().__init__()
        self.module = module
        self.buffers_of: dict[nn.Parameter, Tensor] = {}
        broadcast([*module.parameters(), *module.buffers()])
        optimizer.register_step_post_hook(lambda *_: self.buffers_of.clear())

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        """Average the gradients; the loop calls this after every backward."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                collected = self.buffers_of.setdefault(
                    parameter, torch.zeros(parameter.shape, dtype=parameter.dtype)
                )
                collected.add_(parameter.grad)
                total = collected.clone()
                dist.all_reduce(total)
                parameter.grad.copy_(total / dist.get_world_size())


class OverflowsAlone(nn.Module):
    """A value that is not finite stays on its rank, and the other ranks get the mean of the rest
    (pytorch#136009).

    GRAD-7: it counts as zero; or PARAM-6: ranks skip different steps.
    """

    declares = {"unsupported": ("unused", "in_parts")}  # noqa: RUF012 - read, never changed

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        broadcast([*module.parameters(), *module.buffers()])

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        """Average the gradients; the loop calls this after every backward."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                mine = parameter.grad.clone(memory_format=torch.contiguous_format)
                total = mine.nan_to_num(0.0, 0.0, 0.0)
                dist.all_reduce(total)
                parameter.grad.copy_(
                    torch.where(mine.isfinite(), total / dist.get_world_size(), mine)
                )
