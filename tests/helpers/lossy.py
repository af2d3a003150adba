"""Right wrappers that send rounded gradients, and declare it: `exactness = "lossy"`."""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn


class EightBits(nn.Module):
    """A wrapper that rounds each gradient to 8 bits, and sums the integers of all ranks."""

    declares: ClassVar[dict[str, Any]] = {
        "exactness": "lossy",
        "unsupported": ("complex", "sparse", "nonfinite", "unused", "input_gradients"),
    }

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module, self.group = module, process_group
        self.world_size = dist.get_world_size(process_group)
        for tensor in (*module.parameters(), *module.buffers()):
            sent = tensor.detach().contiguous()
            dist.broadcast(sent, group_src=0, group=process_group)
            tensor.data.copy_(sent)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        return self.module(*args, **kwargs)

    def finish_gradient_synchronization(self) -> None:
        """Replace each gradient by the mean of what the ranks send of theirs."""
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter.grad is not None:
                parameter.grad.copy_(self.mean(name, parameter.grad))

    def mean(self, name: str, gradient: Tensor) -> Tensor:
        """Return the mean over the ranks of a parameter's rounded gradient."""
        del name
        largest = gradient.detach().abs().max().float() if gradient.numel() else torch.zeros(())
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        unit = torch.clamp(largest / 127, min=1e-30)
        rounded = (gradient.float() / unit).round().to(torch.int32).contiguous()
        dist.all_reduce(rounded, group=self.group)
        return (rounded * unit / self.world_size).to(gradient.dtype)


class LargestHalf(EightBits):
    """A wrapper that sends the larger half of each gradient, and adds the rest to the next one."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)
        self._left: dict[str, Tensor] = {}

    def mean(self, name: str, gradient: Tensor) -> Tensor:
        """Return the mean over the ranks of the elements that each rank sends."""
        whole = gradient.detach() + self._left.get(name, torch.zeros(())).to(gradient.dtype)
        flat = whole.reshape(-1)
        sent = torch.zeros_like(flat)
        places = flat.abs().topk(-(-flat.numel() // 2)).indices
        sent[places] = flat[places]
        self._left[name] = (flat - sent).view_as(gradient)
        dist.all_reduce(sent, group=self.group)
        return (sent / self.world_size).view_as(gradient)
