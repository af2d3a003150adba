"""The wrapped module used as a module: hooks, names, modes, copies and groups of parameters."""

from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import replace
from types import MethodType
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_invariants.faults._hooks import weakly
from ddp_invariants.faults._start import broadcast
from ddp_invariants.reference.ddp import DistributedDataParallel as _Reference


class NamedAsTheModule(_Reference):
    """Right: the wrapper lists parameters, buffers and state without a prefix of its own."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        return self.module.named_buffers(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)


class SavesTheModule(_Reference):
    """Right: the wrapper's state is the module's own, while its parameters have a prefix."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)


class HooksBesideOthers(_Reference):
    """Right: the wrapper counts forwards by a hook of its own, beside those of the user."""

    forwards = 0

    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        super().__init__(module, **kwargs)
        module.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self.forwards += 1


class KeepsASnapshot(_Reference):
    """A state is saved once between two forwards, and given again after another one was loaded (no
    public incident found).

    MOD-4.
    """

    snapshot: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.snapshot = None
        return super().forward(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return super().state_dict(*args, **kwargs)
        if self.snapshot is None:
            self.snapshot = deepcopy(super().state_dict())
        return self.snapshot


class CallsForward(_Reference):
    """The wrapper calls the module's forward directly, past its hooks (pytorch/pytorch#35191).

    MOD-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hooks = self.module._forward_hooks, self.module._forward_pre_hooks
        kept = [dict(each) for each in hooks]
        for each in hooks:
            each.clear()
        try:
            return super().forward(*args, **kwargs)
        finally:
            for each, before in zip(hooks, kept, strict=True):
                each.update(before)


class EvaluatesPastHooks(_Reference):
    """An evaluation calls the module's forward directly, past its hooks, to save time (no public
    incident found).

    MOD-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training or torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        return self.module.forward(*args, **kwargs)


class LooksFirst(_Reference):
    """The wrapper runs each forward once without gradients, to see its result
    (no public incident found).

    MOD-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            self.module(*args, **kwargs)
        return super().forward(*args, **kwargs)


class RemovesHooks(_Reference):
    """Wrapping removes the hooks that the user registered on children
    (no public incident found).

    MOD-1.
    """

    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        super().__init__(module, **kwargs)
        for child in module.children():
            for part in child.modules():
                part._forward_hooks.clear()


class KeepsTheMode(_Reference):
    """eval() and train() switch the wrapper alone (no public incident found).

    MOD-2.
    """

    def train(self, mode: bool = True) -> Self:
        self.training = mode
        return self


class AppliesToItself(_Reference):
    """apply() visits the wrapper and the module, but no child (no public incident found).

    MOD-2.
    """

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        fn(self.module)
        fn(self)
        return self


class ReturnsTheModule(_Reference):
    """train() and eval() return the module, so that `ddp = ddp.train()` loses the wrapper
    (no public incident found).

    MOD-2.
    """

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        return self.module  # type: ignore[return-value]  # which is the fault


class ListsWhatIsTrained(_Reference):
    """The wrapper lists only parameters that require a gradient (no public incident found).

    MOD-2.
    """

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in super().named_parameters(*args, **kwargs):
            if parameter.requires_grad:
                yield name, parameter


class BindsForward(_Reference):
    """The module gets a forward bound to itself, which its deep copies keep
    (EleutherAI/oslo#137).

    MOD-3.
    """

    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        super().__init__(module, **kwargs)
        forward = module.forward

        def bound(*args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

        module.forward = bound


class SharesParameters(_Reference):
    """A deep copy of the module holds the same tensors (no public incident found).

    MOD-3.
    """

    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        super().__init__(module, **kwargs)

        def share(_memo: object) -> nn.Module:
            return copy(module)

        module.__deepcopy__ = share  # type: ignore[assignment]  # as copy.deepcopy looks it up


class CopiesItsPlan(_Reference):
    """A deep copy counts the gradients of its own parameters, but has no hooks that tell it of one
    (no public incident found).

    MOD-3.
    """

    def __getstate__(self) -> dict[str, Any]:
        plan = [replace(bucket, flat=None, work=None) for bucket in self._buckets]
        return {**vars(self), "_buckets": plan, "_hooks": []}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._buckets and not self._hooks:
            return self.module(*args, **kwargs)
        return super().forward(*args, **kwargs)


class KeepsMeans(nn.Module):
    """Right: a call after backward computes the means in tensors that serve all steps."""

    # A rank without a gradient would send nothing, and the means are found by name.
    declares: ClassVar[dict[str, Any]] = {"unsupported": ("unused", "pruned")}

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        broadcast([*module.parameters(), *module.buffers()], process_group)
        self.means = {
            name: torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            for name, parameter in module.named_parameters()
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def average_gradients(self) -> None:
        """Average the gradients."""
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                mean = self.means[name]
                mean.copy_(parameter.grad)
                dist.all_reduce(mean, group=self.group)
                mean /= dist.get_world_size(self.group)
                parameter.grad = mean


class PicklesNoHandles(nn.Module):
    """Right: hooks average the gradients, and a pickled wrapper has no handles of them."""

    # A rank without a gradient sends nothing, and only parameters of the start have hooks.
    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused", "crossed", "unfreeze", "assign")
    }

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        broadcast([*module.parameters(), *module.buffers()], process_group)
        self.handles = [
            parameter.register_post_accumulate_grad_hook(weakly(self._average))
            for parameter in module.parameters()
            if parameter.requires_grad
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "handles": []}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def _average(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        mean = parameter.grad.contiguous().clone()
        dist.all_reduce(mean, group=self.group)
        parameter.grad.copy_(mean / dist.get_world_size(self.group))


class SharesMeans(KeepsMeans):
    """A deep copy computes its means in the tensors of the original
    (similar: pytorch/pytorch#44798).

    MOD-3.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = copy(self)
        twin._modules = {"module": deepcopy(self.module, memo)}
        return twin


def first_group_only(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Before a step, the gradients of the first group of parameters alone are averaged
    (no public incident found).

    PARAM-1.
    """
    broadcast([*module.parameters(), *module.buffers()])

    def average(*_: object) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            if parameter.grad is not None:
                whole = parameter.grad.contiguous().clone()
                dist.all_reduce(whole)
                parameter.grad.copy_(whole / dist.get_world_size())

    optimizer.register_step_pre_hook(average)
    return module, optimizer


first_group_only.declares = {  # type: ignore[attr-defined]  # read from it
    "gradients": "hidden",
    "unsupported": ("closure",),  # A hook runs before the step calls a closure.
}


def steps_its_own(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Right: each rank's optimizer updates parameters of its own, and sends them to the others."""
    wrapper, plain = _Reference(module), optimizer.step

    def step(_self: Optimizer) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        others = {p: p.grad for number, p in enumerate(parameters) if number % size != rank}
        for parameter in others:
            parameter.grad = None
        plain()
        for parameter, gradient in others.items():
            parameter.grad = gradient
        for number, parameter in enumerate(parameters):
            whole = parameter.detach().contiguous().clone()
            dist.broadcast(whole, number % size)
            parameter.detach().copy_(whole)

    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]  # as libraries do
    return wrapper, optimizer


def _averages_before_steps(optimizer: Optimizer) -> None:
    """Average the gradients of all groups before each step."""

    def average(*_: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    whole = parameter.grad.contiguous().clone()
                    dist.all_reduce(whole)
                    parameter.grad.copy_(whole / dist.get_world_size())

    optimizer.register_step_pre_hook(average)


def makes_the_groups_anew(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Right: the wrapper makes the optimizer anew, with all groups and their options."""
    broadcast([*module.parameters(), *module.buffers()])
    make: Any = type(optimizer)
    anew = make([dict(group) for group in optimizer.param_groups])
    _averages_before_steps(anew)
    return module, anew


def makes_one_group(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """In the optimizer that the wrapper makes anew, all parameters are in the first group
    (no public incident found).

    PARAM-3: options of parameter group 0.
    """
    broadcast([*module.parameters(), *module.buffers()])
    first, *others = optimizer.param_groups
    parameters = [*first["params"], *(each for group in others for each in group["params"])]
    make: Any = type(optimizer)
    anew = make([{**first, "params": parameters}])
    _averages_before_steps(anew)
    return module, anew


def decays_all_alike(module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """Every group gets the weight decay of the optimizer's defaults, and keeps its learning rate
    (no public incident found).

    PARAM-3.
    """
    broadcast([*module.parameters(), *module.buffers()])
    for group in optimizer.param_groups:
        group["weight_decay"] = optimizer.defaults["weight_decay"]
    _averages_before_steps(optimizer)
    return module, optimizer


for _wrap in (makes_the_groups_anew, makes_one_group, decays_all_alike):
    _wrap.declares = {  # type: ignore[attr-defined]  # read from it
        "gradients": "hidden",
        # A hook runs before the step calls a closure, and sends the gradients that a rank has.
        "unsupported": ("closure", "unused"),
    }


class TrainsEveryPart(_Reference):
    """Each forward puts the module into the wrapper's mode, and so undoes `eval()` on a part of it
    (Lightning-AI/pytorch-lightning#18930).

    MOD-2.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.module.train(self.training)
        return super().forward(*args, **kwargs)


class TrainsEveryPartAtFirst(_Reference):
    """Wrapping puts the whole module into training mode, and so undoes `eval()` on a part of it
    (no public incident found).

    MOD-2.
    """

    def __init__(self, module: nn.Module, **kwargs: Any) -> None:
        super().__init__(module.train(), **kwargs)


class TrainsEveryPartForAMoment(_Reference):
    """Each forward trains all parts of the module that have no buffers, and then gives them their
    own modes back (no public incident found).

    LOSS-1.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        modes = {part: part.training for part in self.module.modules()}
        for part in modes:
            part.training = part.training or (self.training and not part._buffers)
        try:
            return super().forward(*args, **kwargs)
        finally:
            for part, mode in modes.items():
                part.training = mode
