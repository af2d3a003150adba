"""Data parallelism without modules: a list of weights, a function, one all-reduce per parameter.

Idea: Minimal functional implementations for teaching. The mean over ranks is that of synchronous
SGD (Chen et al. 2016, arXiv:1604.00981).

Claims: With equal weights, slices of equal size and averaged gradients, training is mathematically
single-device training on the whole batch. Nothing is broadcast: all ranks draw their weights from
the same seed.

Verdict: right, as long as the ranks really start equal, which this code does not check.
"""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import gelu

# Chosen by version, not by trying: after an error, a rank that sends again may wait for a rank that
# has died.
_GLOO_AVERAGES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


class FunctionalAverage:
    """A stack of weights (out, in), each followed by GELU.

    Every rank has its own optimizer.
    """

    declares: ClassVar[dict[str, Any]] = {
        "init": "seed",
        "loss": "mse",
        "stack": {"activation": "gelu", "last": "gelu"},
    }

    def __init__(self) -> None:
        self.optimizer: Any = None

    def train_step(
        self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor, context: Any
    ) -> Tensor:
        """Run one step on this rank's slice of the batch.

        Args:
            parameters: The weights, first layer first; updated in place.
            inputs: Shape (B, in).
            targets: Shape (B, out).
            context: `optimizer(parameters)` makes an optimizer; `group` is the process group.

        Returns:
            This rank's loss before the update, 0-d.
        """
        weights = list(parameters.values())
        if self.optimizer is None:
            self.optimizer = context.optimizer(weights)
        self.optimizer.zero_grad()
        y = inputs
        for weight in weights:
            y = gelu(y.to(weight.dtype) @ weight.T)
        loss = (y - targets.to(y.dtype)).square().mean()
        loss.backward()
        for weight in weights:
            if weight.grad is not None:
                # A contiguous copy: gloo ignores strides.
                mean = weight.grad.contiguous()
                average(mean, context.group)
                weight.grad.copy_(mean)
        self.optimizer.step()
        return loss.detach()


def average(tensor: Tensor, group: dist.ProcessGroup | None) -> None:
    """Replace a contiguous tensor by its mean over the group."""
    if _GLOO_AVERAGES:
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
        return
    dist.all_reduce(tensor, dist.ReduceOp.SUM, group=group)
    tensor /= dist.get_world_size(group)
