"""A two-layer MLP trained data-parallel by hand: no autograd, no wrapper, no optimizer.

Idea: The chain rule is written out (Rumelhart, Hinton & Williams 1986). The mean over ranks is
taken between the chain rule and the update, as in from-scratch lectures on data parallelism.

Claims: Only gradients of parameters are communicated, never those of activations. The sum over
ranks divided by W is the gradient of the mean over all W * B samples. All ranks therefore take the
step that a single process would take on the whole batch. The all-reduce of a layer may be
interleaved with the backward of the layer below.

Verdict: right, for its small scope: two linear layers, no bias, no activation, mean squared error,
plain SGD.

Shapes: B samples per rank, I inputs, H hidden, O outputs.
"""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ManualMLP:
    """A trainer of the parameters W1 (H, I) and W2 (O, H), one step at a time.

    Raises:
        ValueError: The model is not two trainable linear layers of one dtype.
    """

    declares: ClassVar[dict[str, Any]] = {
        "loss": "mse",
        "stack": {"layers": 2},
        "unsupported": ["adam", "adamw", "momentum", "weight_decay", "maximize"],
    }

    @torch.no_grad()
    def wrap(self, module: nn.Module, context: Any) -> None:
        """Give every rank the first rank's parameters; equal gradients alone are not enough."""
        weights = list(module.parameters())
        if len(weights) != 2 or any(
            w.dim() != 2 or not w.requires_grad or w.dtype != weights[0].dtype for w in weights
        ):
            raise ValueError(
                "expected two trainable weights (out, in) of one dtype: "
                "this is a two-layer MLP without biases"
            )
        for weight in weights:
            whole = weight.contiguous()
            dist.broadcast(whole, group_src=0, group=context.group)
            weight.copy_(whole)

    @torch.no_grad()
    def train_step(
        self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor, context: Any
    ) -> Tensor:
        """Run forward, backward, all-reduce and update on this rank's batch.

        Args:
            parameters: W1 and W2, updated in place.
            inputs: Shape (B, I).
            targets: Shape (B, O).
            context: The learning rate `lr`, the process group `group` and its `world_size`.

        Returns:
            This rank's loss before the update, 0-d.
        """
        w1, w2 = parameters.values()
        x = inputs.to(w1.dtype)

        hidden = x @ w1.T  # (B, H)
        output = hidden @ w2.T  # (B, O)
        error = output - targets.to(output.dtype)  # (B, O)

        grad_output = 2 * error / error.numel()  # (B, O); the mean runs over B * O elements
        grad_w2 = grad_output.T @ hidden  # (O, H)
        grad_hidden = grad_output @ w2  # (B, H); before w2 moves
        _update(w2, grad_w2, context)
        grad_w1 = grad_hidden.T @ x  # (H, I)
        _update(w1, grad_w1, context)
        return error.square().mean()


def _update(weight: Tensor, gradient: Tensor, context: Any) -> None:
    """All-reduce a gradient, divide it by W, and take the SGD step."""
    total = gradient.contiguous()
    dist.all_reduce(total, dist.ReduceOp.SUM, group=context.group)
    weight -= context.lr * (total / context.world_size)
