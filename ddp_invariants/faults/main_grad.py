"""Main gradients: hooks add each `.grad` to a `.main_grad` of at least float32.

Source: Shoeybi et al. 2019, arXiv:1909.08053. The loop calls `zero_grad_buffer` before a step's
first batch and `finish_grad_sync` after its last backward. Accumulation is always local, so
`no_sync` has nothing to do.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_invariants.faults._start import broadcast


class MainGrad(nn.Module):
    """Right: hooks add each gradient to a main gradient, and the call after backward averages the
    main gradients.
    """

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ["never_zeroed", "assign", "freeze", "unfreeze", "wrapped_again"]
    }

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.world_size = dist.get_world_size(process_group)
        self._prepare()
        broadcast([*module.parameters(), *module.buffers()], process_group)
        self.main_grads = {p: torch.zeros_like(p, dtype=self._main_dtype(p)) for p in self._kept()}
        for parameter, main_grad in self.main_grads.items():
            parameter.main_grad = main_grad  # type: ignore[attr-defined]  # as Megatron does
        self._hook()

    def _prepare(self) -> None:
        """Do nothing; a fault changes the module here."""

    def _kept(self) -> list[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def _main_dtype(self, parameter: Tensor) -> torch.dtype:
        return torch.promote_types(parameter.dtype, torch.float32)

    def _hook(self) -> None:
        for parameter in self.main_grads:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._ready)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def zero_grad_buffer(self) -> None:
        for main_grad in self.main_grads.values():
            main_grad.zero_()

    def _ready(self, parameter: Any) -> None:
        self._add(parameter)
        parameter.grad = None

    def _add(self, parameter: Any) -> None:
        self.main_grads[parameter] += parameter.grad

    def finish_grad_sync(self) -> None:
        for main_grad in self.main_grads.values():
            self._average(main_grad)

    def _average(self, main_grad: Tensor) -> None:
        total = main_grad.contiguous()
        dist.all_reduce(total, group=self.group)
        main_grad.copy_(total / self.world_size)


class RoundsItsMainGradient(nn.Module):
    """Right: gradients are averaged in a `main_grad` that each parameter keeps, and `.grad` is its
    rounded copy.
    """

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        broadcast([*module.parameters(), *module.buffers()], process_group)

    def forward(self, *inputs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs)

    def sync_gradients(self) -> None:
        """Average the gradients; the loop calls this after backward."""
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        dist.all_reduce(used, group=self.group)
        for parameter, ranks in zip(parameters, used.tolist(), strict=True):
            if ranks:
                self._average(parameter)

    def _average(self, parameter: nn.Parameter) -> None:
        wide = torch.promote_types(parameter.dtype, torch.float32)
        main = torch.zeros(parameter.shape, dtype=wide)
        if parameter.grad is not None:
            main += parameter.grad.to_dense()
        dist.all_reduce(main, group=self.group)
        main /= dist.get_world_size(self.group)
        parameter.main_grad = main  # type: ignore[attr-defined]  # as Megatron does
        parameter.grad = main.to(parameter.dtype, copy=True)


class AliasesGrad(MainGrad):
    """`.to` hands the means back without a copy if dtypes agree, so autograd adds to both
    (picotron's bucket).

    GRAD-5: accumulated once too often.
    """

    def finish_grad_sync(self) -> None:
        super().finish_grad_sync()
        for parameter, main_grad in self.main_grads.items():
            parameter.grad = main_grad.to(parameter.dtype)


class NeverReset(MainGrad):
    """Main gradients are never cleared, because the optimizer's zero_grad clears .grad only
    (similar: NVIDIA/Megatron-LM#4609).

    GRAD-5: not cleared.
    """

    def zero_grad_buffer(self) -> None:
        pass


class FrozenToo(MainGrad):
    """Frozen parameters have main gradients too, zeros to which weight decay is added
    (for unused parameters: pytorch#28883).

    GRAD-4: a frozen parameter has a gradient.
    """

    def _kept(self) -> list[nn.Parameter]:
        return list(self.module.parameters())


class FloatForAll(MainGrad):
    """Main gradients are float32 even for parameters of higher precision
    (similar: facebookresearch/fairscale#583).

    GRAD-2: rounded to float32.
    """

    def _main_dtype(self, parameter: Tensor) -> torch.dtype:
        del parameter
        return torch.float32


class BfloatForAll(MainGrad):
    """Main gradients are made in bfloat16, the dtype meant for the forward
    (similar: fairscale#583).

    GRAD-2: rounded to bfloat16.
    """

    def _main_dtype(self, parameter: Tensor) -> torch.dtype:
        del parameter
        return torch.bfloat16


class AddsOncePerName(MainGrad):
    """Hooks are registered per name, so a parameter with two names is added twice
    (no public incident found).

    GRAD-2: accumulated once too often.
    """

    def _hook(self) -> None:
        for _, parameter in self.module.named_parameters(remove_duplicate=False):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._add)
        for parameter in self.main_grads:
            parameter.register_post_accumulate_grad_hook(self._drop)

    def _drop(self, parameter: Any) -> None:
        parameter.grad = None


class Overwrites(MainGrad):
    """A gradient is copied into the main gradient instead of added to it
    (no public incident found).

    GRAD-8: the earlier ones were lost.
    """

    def _add(self, parameter: Any) -> None:
        self.main_grads[parameter].copy_(parameter.grad)


class HooksInEveryForward(MainGrad):
    """Each forward registers hooks that remove themselves when they run; after a backward that
    raises, they stay (ShallowSpeed).

    LIVE-2: accumulated once too often.
    """

    def _hook(self) -> None:
        """Do nothing; each forward registers the hooks."""

    def forward(self, *inputs: Any) -> Any:
        self._drop()
        for parameter in self.main_grads:
            self._hook_once(parameter)
        return super().forward(*inputs)

    def _hook_once(self, parameter: nn.Parameter) -> None:
        def add(parameter: Tensor) -> None:
            handle.remove()
            self._add(parameter)

        handle = parameter.register_post_accumulate_grad_hook(add)

    def _drop(self) -> None:
        for parameter in self.main_grads:
            parameter.grad = None

    def finish_grad_sync(self) -> None:
        self._drop()
        super().finish_grad_sync()


class SendsACopy(MainGrad):
    """A main gradient is cast to the parameter's dtype to be sent; if the cast makes a copy, the
    sum is lost (NVIDIA/Megatron-LM#5337).

    GRAD-1: divided, but not reduced.
    """

    def finish_grad_sync(self) -> None:
        for parameter, main_grad in self.main_grads.items():
            dist.all_reduce(main_grad.to(parameter.dtype), group=self.group)
            main_grad.div_(self.world_size)


class RunsInBfloat16(MainGrad):
    """The wrapper runs its forward under autocast, although nobody asked for it
    (no public incident found).

    LOSS-1.
    """

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(*inputs)


class CastsTheModule(MainGrad):
    """Parameters are cast to bfloat16, because their main gradients are float32
    (no public incident found).

    INIT-3: dtype 'bfloat16'.
    """

    def _prepare(self) -> None:
        self.module.bfloat16()
