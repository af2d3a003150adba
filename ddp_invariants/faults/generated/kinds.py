"""Composed wrappers of other kinds, which differ from the reference in how the loop calls them.

Source of the shared optimizer state: Rajbhandari et al. 2020, arXiv:1910.02054.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_invariants.faults.generated.wrapper import Composed
from ddp_invariants.reference.ddp import Bucket


class Called(Composed):
    """A composed wrapper whose reduction ends in a call of the loop, after the backward."""

    def _finish(self) -> None:
        """Do nothing; the loop's call finishes the reduction."""

    def finish_gradient_synchronization(self) -> None:
        """Send the remaining buckets, wait for all results, and write the means back."""
        if self._reducing:
            super()._finish()


class Main(Called):
    """A composed wrapper that keeps gradients in `.main_grad`, in float32 or a wider format."""

    # The loop clears the main gradients before each step. Of two wrappers of one module, the first
    # takes each gradient.
    declares: ClassVar[dict[str, Any]] = {"unsupported": ("never_zeroed", "wrapped_again")}

    def _plan(self) -> None:
        super()._plan()
        kept = {id(parameter) for parameter in self._trainable()}
        for parameter in self.module.parameters():
            if id(parameter) not in kept:
                parameter.__dict__.pop("main_grad", None)
            elif not hasattr(parameter, "main_grad"):
                wide = torch.promote_types(parameter.dtype, torch.float32)
                # A forward in inference mode may be the first one after a layer was unfrozen.
                with torch.inference_mode(mode=False):
                    main = torch.zeros_like(parameter, dtype=wide, requires_grad=False)
                parameter.main_grad = main  # type: ignore[attr-defined]  # as Megatron does

    def zero_grad_buffer(self) -> None:
        """Clear the main gradients."""
        for parameter in self.module.parameters():
            if hasattr(parameter, "main_grad"):
                parameter.main_grad.zero_()

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        _main(parameter).add_(parameter.grad.detach().to_dense())
        parameter.grad = None
        super()._gradient_ready(parameter)

    def _flat(self, bucket: Bucket) -> Tensor:
        gradients = [_main(parameter).reshape(-1) for parameter in bucket.parameters]
        return torch.cat([*gradients, gradients[0].new_ones(len(gradients))])

    def _unpack(self, bucket: Bucket) -> None:
        for parameter, mean in self._means(bucket):
            _main(parameter).copy_(mean)


def _main(parameter: nn.Parameter) -> Tensor:
    main: Tensor = parameter.main_grad  # type: ignore[attr-defined]  # made by the plan
    return main


class Sharded(Composed):
    """A composed wrapper whose ranks each update some parameters, and broadcast them.

    Args:
        module: The replica.
        optimizer: The optimizer of all parameters; the wrapper alters its `step`.
        process_group: The ranks to average over; None is the default group.
        owners: The rank that updates a parameter.
        choices: The choices of `Composed`.
    """

    declares: ClassVar[dict[str, Any]] = {"zero": 1, "partition": "parameters"}

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        process_group: dist.ProcessGroup | None = None,
        owners: str = "listed",
        **choices: str,
    ) -> None:
        super().__init__(module, process_group, **choices)
        self._owners = self._dealt(_parameters(optimizer), owners)
        plain = optimizer.step
        optimizer.step = MethodType(  # type: ignore[method-assign]  # as libraries do
            lambda self, closure=None: wrapper._step(self, plain, closure), optimizer
        )
        wrapper = self

    @torch.no_grad()
    def _step(
        self, optimizer: Optimizer, plain: Callable[[], Any], closure: Callable[[], Any] | None
    ) -> Any:
        """Update the parameters that this rank owns, and take the others from their owners."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        owned = [*zip(_parameters(optimizer), self._owners, strict=True)]
        rank = dist.get_rank(self.group)
        others = [parameter for parameter, owner in owned if owner != rank]
        gradients = [parameter.grad for parameter in others]
        for parameter in others:
            parameter.grad = None
        plain()
        for parameter, gradient in zip(others, gradients, strict=True):
            parameter.grad = gradient
        for parameter, owner in owned:
            whole = parameter.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(whole, group_src=owner, group=self.group)
            if not self._act("update", [parameter], self.module.named_parameters(), -1):
                parameter.copy_(whole)
        return loss

    def _dealt(self, parameters: list[nn.Parameter], owners: str) -> list[int]:
        """Return the owner of each parameter."""
        # Frozen parameters have no state, and so they come last.
        order = sorted(
            range(len(parameters)),
            key=lambda number: (
                not parameters[number].requires_grad,
                -parameters[number].nbytes if owners == "sorted" else 0,
            ),
        )
        by_number, held = {}, [0] * self.world_size
        for number in order:
            by_number[number] = least = held.index(min(held))
            held[least] += parameters[number].nbytes
        return [by_number[number] for number in range(len(parameters))]


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
