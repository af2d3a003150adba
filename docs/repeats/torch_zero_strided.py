"""torch 2.13's ZeroRedundancyOptimizer sends wrong elements of a non-contiguous parameter.

After each step, the optimizer broadcasts the owner's parameters as they lie in memory. Since gloo
ignores strides (pytorch#192920), the other ranks get wrong elements. Nothing is raised.

Run it from the checkout's root:

    python docs/repeats/torch_zero_strided.py
"""

import sys

import torch
from meet import in_two_ranks
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer


def rank_main(rank: int) -> None:
    """Run one step of SGD with equal gradients: every element must fall by one on every rank."""
    strided = nn.Parameter(torch.arange(8.0).reshape(2, 4)[:, ::2])
    optimizer = ZeroRedundancyOptimizer(
        [strided, nn.Parameter(torch.ones(2))], torch.optim.SGD, lr=1.0
    )
    expected = strided.detach() - 1
    strided.grad = torch.ones(2, 2)
    optimizer.step()
    sys.stdout.write(f"rank {rank}: {strided.tolist()}, expected {expected.tolist()}\n")


if __name__ == "__main__":
    in_two_ranks(rank_main)
