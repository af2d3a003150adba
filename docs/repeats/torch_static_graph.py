"""torch 2.13's DDP with static_graph=True: no gradient is reduced after a caught exception.

After an exception that is caught in the first backward, no gradient is ever reduced again. Nothing
is raised, in this step or in any later step. The script uses plain torch and two ranks; every
step's gradients must be equal on both.

Run it from the checkout's root:

    python docs/repeats/torch_static_graph.py
"""

import sys

import torch
from meet import in_two_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def fail(_gradient: Tensor) -> None:
    """Raise an error, as a user's backward may do, for example when it runs out of memory."""
    raise RuntimeError("an exception of the user's own")


class Model(nn.Module):
    """A layer whose backward fails if `failing` is set."""

    failing = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's outputs: shape (B, 2) to (B, 1)."""
        outputs: Tensor = self.layer(inputs)
        if self.failing:
            outputs.register_hook(fail)
        return outputs


def rank_main(rank: int) -> None:
    """Catch an exception in the first backward, clear the gradients, and train on."""
    torch.manual_seed(0)
    module = Model()
    wrapped = DistributedDataParallel(module, static_graph=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    inputs = torch.full((1, 2), float(rank + 1))
    for step in range(4):
        module.failing = step == 0
        try:
            wrapped(inputs).sum().backward()
        except RuntimeError as error:
            sys.stdout.write(f"rank {rank}: caught {error}\n")
            optimizer.zero_grad()
            continue
        sys.stdout.write(
            f"rank {rank}, step {step}: gradient {module.layer.weight.grad}, "
            f"weight {module.layer.weight.data}\n"
        )
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    in_two_ranks(rank_main)
