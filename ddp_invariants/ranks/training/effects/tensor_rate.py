"""A learning rate that the program keeps in a tensor (`situations.tensor_rate`)."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ddp_invariants.implementation.adapter import Context
from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.situations import tensor_rate

if TYPE_CHECKING:
    from ddp_invariants.ranks.training.stepper import Stepper


@effect(lambda case: case.get(tensor_rate.TensorRate) is not None)
class TensorRate(Effect):
    """A learning rate in a tensor."""

    def on_optimizer(self, context: Context) -> Context:
        """Have the optimizer made with a tensor.

        In float64 it makes the same update as a number, to the last bit. In float32 Adam divides it by
        a bias correction with a rounding of its own. On a device, torch's fused kernels read float32
        from the device, and any number from the CPU.
        """
        rate = torch.tensor(context.lr, dtype=torch.float64)
        if not context.optimizer_arguments.get("fused"):
            rate = self.setup.rank_device.put(rate)
        return replace(context, optimizer_arguments={**context.optimizer_arguments, "lr": rate})

    def begin(self, stepper: "Stepper") -> None:
        """Check that the optimizer keeps the tensor.

        Raises:
            NotImplementedError: A group has another rate.
        """
        groups = stepper.trained.optimizer.param_groups
        if not all(isinstance(group.get("lr"), Tensor) for group in groups):
            raise NotImplementedError("the optimizer keeps a number for the tensor it is given")
