"""One all-reduce per gradient, which a hook starts while backward is still running.

Idea: The step from the naive solution to overlap, Li et al. 2020, section 3.2.3, arXiv:2006.15704,
without buckets.

Claims: Gradients are the mean over the ranks when backward returns. Inside `no_sync()` they
accumulate locally, and the first backward outside averages the accumulated gradients.

Verdict: `AsDescribed` breaks the second claim. A tensor hook sees the gradient of the running
backward only, before autograd adds it to `.grad`. Gradients accumulated under `no_sync()` are
therefore never averaged, and ranks drift apart. Without accumulation the wrapper is right.
`Corrected` is right: its hook runs after the addition.

Both need every parameter to be used on every rank, because a hook that does not run does not join
the all-reduce in which the other ranks wait. Both also need gradients to become ready in the same
order on all ranks. Otherwise gradients of equal shape are mixed. A parameter that is unfrozen or
replaced after wrapping has no hook, so its gradient stays local. Both classes declare these limits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn


class AsDescribed(nn.Module):
    """A wrapper that averages each incoming gradient before autograd adds it to `.grad`.

    Args:
        module: The replica.
        process_group: The ranks to average over; None is the default group.
    """

    declares: ClassVar[dict[str, Any]] = {
        "unsupported": ("unused", "crossed", "unfreeze", "assign")
    }

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.no_sync_depth = 0
        broadcast_state(module, process_group)
        for parameter in module.parameters():
            if parameter.requires_grad:
                self._hook(parameter)

    def _hook(self, parameter: nn.Parameter) -> None:
        parameter.register_hook(
            lambda incoming: incoming if self.no_sync_depth else self._mean(incoming)
        )

    def forward(self, *inputs: Any) -> Any:
        """Run the module."""
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backwards inside accumulate local gradients. May be nested."""
        self.no_sync_depth += 1
        try:
            yield
        finally:
            self.no_sync_depth -= 1

    def _mean(self, gradient: Tensor) -> Tensor:
        """Return the mean over the ranks, as a contiguous copy, because gloo ignores strides."""
        total = gradient.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total / dist.get_world_size(self.group)


class Corrected(AsDescribed):
    """A wrapper that averages `.grad` after autograd has added to it.

    So it averages all gradients accumulated since the last mean. A mean that was left in place is
    the same on all ranks, so averaging it again does not change it.
    """

    def _hook(self, parameter: nn.Parameter) -> None:
        parameter.register_post_accumulate_grad_hook(self._average_accumulated)

    def _average_accumulated(self, parameter: Tensor) -> None:
        if not self.no_sync_depth:
            assert parameter.grad is not None
            parameter.grad.detach().copy_(self._mean(parameter.grad))


@torch.no_grad()
def broadcast_state(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give every rank the first rank's parameters and buffers.

    The values travel through contiguous copies, because gloo ignores strides.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.contiguous()
        dist.broadcast(whole, group_src=0, group=group)
        tensor.copy_(whole)
