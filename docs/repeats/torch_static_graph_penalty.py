"""torch 2.13's DDP with static_graph=True: no gradient is reduced under a gradient penalty.

The loss carries a penalty on gradients. Nothing is raised. The script uses plain torch and two
ranks; gradients must be equal on both.

Run it from the checkout's root:

    python docs/repeats/torch_static_graph_penalty.py
"""

import sys

import torch
from meet import in_two_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def rank_main(rank: int) -> None:
    """Run one step of each kind: with and without static_graph, with and without the penalty."""
    for static_graph in (False, True):
        for penalised in (False, True):
            torch.manual_seed(0)
            module = nn.Linear(2, 2)
            wrapped = DistributedDataParallel(module, static_graph=static_graph)
            inputs = torch.full((1, 2), float(rank + 1), requires_grad=True)
            outputs = wrapped(inputs)
            loss = outputs.square().sum()
            if penalised:  # This call to grad uses up the state that the forward has armed.
                (gradient,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
                loss = loss + gradient.square().sum()
            loss.backward()
            sys.stdout.write(
                f"rank {rank}, {static_graph=}, {penalised=}: gradient {module.bias.grad}\n"
            )


if __name__ == "__main__":
    in_two_ranks(rank_main)
