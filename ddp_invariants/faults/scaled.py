"""An optimizer or a wrapper beside a loss scaler, which skips the steps whose gradients overflow.

torch's GradScaler unscales and skips itself, or leaves both to an optimizer that says it supports
that: it hands it the scale, or None where the program has unscaled already, and whether a gradient
of this rank is not finite.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_invariants.faults._start import broadcast
from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class _SeesToIt:
    """Steps another optimizer, and sees to unscaling and skipping."""

    _step_supports_amp_scaling = True

    def __init__(self, optimizer: Optimizer, group: dist.ProcessGroup | None = None) -> None:
        self.optimizer, self.group = optimizer, group

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)

    def step(self) -> None:
        # The scaler sets both attributes for a step, and takes them away again.
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found is not None:
            if self._overflows(found):
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

    def _overflows(self, found: Tensor) -> bool:
        return bool(found)

    def _skip(self) -> None:
        pass

    def _unscale(self, scale: Tensor | None) -> None:
        if scale is not None:
            for gradient in self._gradients():
                gradient.mul_(1 / scale.item())


def unscales_and_skips(
    module: nn.Module, optimizer: Optimizer, process_group: dist.ProcessGroup | None = None
) -> tuple[nn.Module, _SeesToIt]:
    """Right: the optimizer unscales gradients and skips steps by itself, as torch's fused ones do."""
    return Reference(module, process_group), _SeesToIt(optimizer)


class _Sharded(_SeesToIt):
    """Looks for what is not finite in one of W shards of the parameters, as ranks do that share the work."""

    def _overflows(self, found: Tensor) -> bool:
        del found
        mine = self._gradients()[dist.get_rank(self.group) :: dist.get_world_size(self.group)]
        return self._of_all(not all(gradient.isfinite().all() for gradient in mine))

    def _of_all(self, mine: bool) -> bool:
        overflows = torch.tensor(float(mine))
        dist.all_reduce(overflows, dist.ReduceOp.MAX, group=self.group)
        return bool(overflows)


def shares_what_it_finds(
    module: nn.Module, optimizer: Optimizer, process_group: dist.ProcessGroup | None = None
) -> tuple[nn.Module, _SeesToIt]:
    """Right: each rank looks for an overflow in its shard of the parameters, and all tell one another."""
    return Reference(module, process_group), _Sharded(optimizer, process_group)


class _Alone(_Sharded):
    def _of_all(self, mine: bool) -> bool:
        return mine


def keeps_what_it_finds(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """Each rank looks for an overflow in its shard of the parameters, and tells nobody (facebookresearch/fairscale#180).

    PARAM-6: a skipped step moves parameters.
    """
    return Reference(module), _Alone(optimizer)


class _First(_SeesToIt):
    def _unscale(self, scale: Tensor | None) -> None:
        self.first = getattr(self, "first", scale)
        super()._unscale(self.first if scale is not None else None)


def unscales_by_the_first(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """The optimizer goes on dividing by the first scale that it was handed (no public incident found).

    PARAM-6: by the first step's loss scale.
    """
    return Reference(module), _First(optimizer)


class _Twice(_SeesToIt):
    def _unscale(self, scale: Tensor | None) -> None:
        super()._unscale(scale)
        super()._unscale(scale)


def unscales_twice(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """Gradients are unscaled by a hook and by the step (no public incident found). PARAM-6: by the loss scale once more."""
    return Reference(module), _Twice(optimizer)


class _Never(_SeesToIt):
    def _unscale(self, scale: Tensor | None) -> None:
        pass


def never_unscales(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, _SeesToIt]:
    """The optimizer is left to unscale gradients, and does not (a classic). PARAM-6: never unscaled."""
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
    """A skipped step leaves the parameters alone and takes the overflow into the momentum (LibreYOLO/libreyolo#771).

    PARAM-6: a skipped step changes the optimizer's state.
    """
    return Reference(module), _Advances(optimizer)


class ClearedByTheStep(nn.Module):
    """Gradients are collected in buffers that a step of the optimizer clears: none does where it is skipped (a classic).

    PARAM-6: although no gradient overflows.
    """

    declares = {"unsupported": ("unused", "in_parts", "accumulation", "never_zeroed")}  # noqa: RUF012 - read, never changed

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        super().__init__()
        self.module = module
        self.buffers_of: dict[nn.Parameter, Tensor] = {}
        broadcast([*module.parameters(), *module.buffers()])
        optimizer.register_step_post_hook(lambda *_: self.buffers_of.clear())

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        """To be called after every backward."""
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
    """What is not finite stays on the rank where it arose, and the others get the mean of the rest (pytorch#136009).

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
        """To be called after every backward."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                mine = parameter.grad.clone(memory_format=torch.contiguous_format)
                total = mine.nan_to_num(0.0, 0.0, 0.0)
                dist.all_reduce(total)
                parameter.grad.copy_(
                    torch.where(mine.isfinite(), total / dist.get_world_size(), mine)
                )
