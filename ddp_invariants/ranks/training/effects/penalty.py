"""A penalty on the gradient of the outputs by the inputs (`TrainingCase.penalty`)."""

import torch
from torch import Tensor

from ddp_invariants.ranks.training.effect import Effect, effect


@effect(lambda case: case.penalty)
class Penalty(Effect):
    """A penalty on the gradient of the outputs by the inputs."""

    def on_inputs(self, inputs: Tensor) -> None:
        """Make autograd record operations on the inputs."""
        inputs.requires_grad_()

    def on_loss(self, loss: Tensor, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Add the squared gradient, with a graph, so that backward differentiates it, too."""
        (gradient,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return loss + gradient.double().square().sum()
