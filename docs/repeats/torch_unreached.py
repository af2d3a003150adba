"""torch 2.13's DDP: a rank whose loss reaches no parameter sends no gradient, and the other hangs.

This happens with find_unused_parameters=True, which otherwise counts unused parameters as zero. The
script uses plain torch and two ranks. Both should end with the same gradient.

Run it from the checkout's root:

    python docs/repeats/torch_unreached.py
"""

import os
import sys
import threading

import torch
from meet import in_two_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SECONDS = 10


class Chooses(nn.Module):
    """A linear layer that a forward may pass by."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, inputs: Tensor, *, use: bool) -> Tensor:
        """Return the layer's result, or the inputs."""
        return self.layer(inputs) if use else inputs * 1


def rank_main(rank: int) -> None:
    """Run a backward that reaches the inputs alone on rank 1."""
    module = Chooses()
    wrapped = DistributedDataParallel(module, find_unused_parameters=True)
    inputs = torch.ones(1, 2, requires_grad=True)

    def give_up() -> None:
        if rank == 0:
            sys.stdout.write(f"rank 0: still in backward after {SECONDS} seconds\n")
            sys.stdout.flush()
        os._exit(0)

    limit = threading.Timer(SECONDS, give_up)
    limit.start()
    wrapped(inputs, use=rank == 0).sum().backward()
    sys.stdout.write(f"rank {rank}: gradient {module.layer.bias.grad}\n")
    sys.stdout.flush()
    if rank:
        limit.join()  # Stay for as long as the other rank waits.


if __name__ == "__main__":
    in_two_ranks(rank_main)
