"""torch 2.13's DDP with static_graph=True: where the loss carries a penalty on gradients, no gradient is reduced.

    python docs/repeats/torch_static_graph_penalty.py

Nothing is raised. Plain torch, two ranks; gradients must be equal on both.
"""

import sys

import torch
from meet import in_two_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def rank_main(rank: int) -> None:
    """One step of each kind."""
    for static_graph in (False, True):
        for penalised in (False, True):
            torch.manual_seed(0)
            module = nn.Linear(2, 2)
            wrapped = DistributedDataParallel(module, static_graph=static_graph)
            inputs = torch.full((1, 2), float(rank + 1), requires_grad=True)
            outputs = wrapped(inputs)
            loss = outputs.square().sum()
            if penalised:  # The gradient that is asked for here uses up what a forward has armed.
                (gradient,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
                loss = loss + gradient.square().sum()
            loss.backward()
            sys.stdout.write(
                f"rank {rank}, {static_graph=}, {penalised=}: gradient {module.bias.grad}\n"
            )


if __name__ == "__main__":
    in_two_ranks(rank_main)
