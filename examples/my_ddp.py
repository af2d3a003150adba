"""The tutorial's DDP wrapper, and three ways to break it (docs/tutorial.md)."""

from typing import Any

import torch
import torch.distributed as dist


class MyDDP(torch.nn.Module):
    """Averages each gradient over the ranks as soon as backward has computed it."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        for parameter in module.parameters():
            self.start(parameter)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.average)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    def start(self, parameter: Any) -> None:
        value = parameter.detach().contiguous()
        dist.broadcast(value, src=0)
        parameter.data.copy_(value)

    def average(self, parameter: Any) -> None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


class NeverDivides(MyDDP):
    """Sums the gradients."""

    def average(self, parameter: Any) -> None:
        dist.all_reduce(parameter.grad)


class NeverBroadcasts(MyDDP):
    """Leaves every rank with the parameters that it built."""

    def start(self, parameter: Any) -> None:
        pass


class NeverWaits(MyDDP):
    """Divides the gradient while it is still being reduced."""

    def average(self, parameter: Any) -> None:
        dist.all_reduce(parameter.grad, async_op=True)
        parameter.grad /= dist.get_world_size()
