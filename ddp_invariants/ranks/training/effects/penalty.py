"""A penalty on gradients or on parameters (`TrainingCase.penalty`)."""

import torch
from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect
from ddp_invariants.ranks.training.model import Replica
from ddp_invariants.ranks.training.program import Batch


@effect(lambda case: case.penalty == "inputs")
class GradientPenalty(Effect):
    """A penalty on the gradient of the outputs by the inputs."""

    def on_inputs(self, inputs: Tensor) -> None:
        """Make autograd record operations on the inputs."""
        inputs.requires_grad_()

    def on_loss(self, loss: Tensor, outputs: Tensor, batch: Batch, replica: Replica) -> Tensor:
        """Add the squared gradient, with a graph, so that backward differentiates it, too."""
        del replica
        (gradient,) = torch.autograd.grad(outputs.sum(), batch[0], create_graph=True)
        return loss + gradient.double().square().sum()


@effect(lambda case: case.penalty == "weights")
class WeightPenalty(Effect):
    """A penalty on the trained parameters, weighted by a number of the batch."""

    def on_loss(self, loss: Tensor, outputs: Tensor, batch: Batch, replica: Replica) -> Tensor:
        """Add half the sum of all squares, times the first target.

        A wrapper may register parameters again in another order, which rounds otherwise: their names
        have one order.
        """
        del outputs
        squares = [
            (torch.view_as_real(each) if each.is_complex() else each).double().square().sum()
            for _, each in sorted(replica.named_parameters())
            if each.requires_grad
        ]
        return loss + torch.stack(squares).sum() * (batch[1][0, 0] / 2)
