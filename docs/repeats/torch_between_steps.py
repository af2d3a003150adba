"""torch 2.13's DDP after what a program may do between steps: four ways to lose synchronisation, or to have too much of it.

    python docs/repeats/torch_between_steps.py

Nothing is raised, in this step or any later one. Plain torch, two ranks; every step's gradients
must be equal on both, except under `no_sync`, where they must be each rank's own: with inputs of 1
and 2 that is 1 on rank 0 and 2 on rank 1.
"""

import sys

import torch
from meet import in_two_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def wrapped(*, frozen: bool = False) -> tuple[DistributedDataParallel, nn.Linear]:
    """Two layers of one weight each, so that the gradient of the second is the input; the second perhaps frozen."""
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.ones_(first.weight)
    nn.init.ones_(second.weight)
    second.requires_grad_(not frozen)
    return DistributedDataParallel(nn.Sequential(first, second)), second


def told(rank: int, what: str, layer: nn.Linear) -> None:
    """Write down the gradient of a layer."""
    sys.stdout.write(f"rank {rank}, {what}: gradient {layer.weight.grad}\n")


def rank_main(rank: int) -> None:
    """One after the other."""
    inputs = torch.full((1, 1), float(rank + 1))

    model, second = wrapped()
    outputs: Tensor = model(inputs).sum()
    outputs.backward(retain_graph=True)
    model.zero_grad()
    outputs.backward()
    told(rank, "a second backward through one forward", second)

    model, second = wrapped(frozen=True)
    model(inputs).sum().backward()
    second.requires_grad_()
    model.zero_grad()
    model(inputs).sum().backward()
    told(rank, "a layer unfrozen after wrapping", second)

    model, second = wrapped()
    model.double().float()
    model(inputs).sum().backward()
    told(rank, "cast to float64 and back", second)

    model, second = wrapped()
    model(inputs)  # Of which no backward comes.
    with model.no_sync():
        model(inputs).sum().backward()
    told(rank, "under no_sync, after a forward without a backward", second)


if __name__ == "__main__":
    in_two_ranks(rank_main)
