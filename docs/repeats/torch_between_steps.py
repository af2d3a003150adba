"""Four actions between steps that break the synchronisation of torch 2.13's DDP.

DDP loses synchronisation, or synchronises too much. Nothing is raised, in this step or in any later
step. The script uses plain torch and two ranks. Every step's gradients must be equal on both ranks.
Under `no_sync` they must be each rank's own: with inputs of 1 and 2, they are 1 on rank 0 and 2 on
rank 1.

Run it from the checkout's root:

    python docs/repeats/torch_between_steps.py
"""

import sys

import torch
from meet import in_two_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def wrapped(*, frozen: bool = False) -> tuple[DistributedDataParallel, nn.Linear]:
    """Return a wrapped model of two layers with one weight each, and its second layer.

    The gradient of the second weight is the input. The second layer may be frozen when it is
    wrapped.
    """
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.ones_(first.weight)
    nn.init.ones_(second.weight)
    second.requires_grad_(not frozen)
    return DistributedDataParallel(nn.Sequential(first, second)), second


def report(rank: int, label: str, layer: nn.Linear) -> None:
    """Print the gradient of a layer."""
    sys.stdout.write(f"rank {rank}, {label}: gradient {layer.weight.grad}\n")


def rank_main(rank: int) -> None:
    """Run the four actions, one after the other."""
    inputs = torch.full((1, 1), float(rank + 1))

    model, second = wrapped()
    outputs: Tensor = model(inputs).sum()
    outputs.backward(retain_graph=True)
    model.zero_grad()
    outputs.backward()
    report(rank, "a second backward through one forward", second)

    model, second = wrapped(frozen=True)
    model(inputs).sum().backward()
    second.requires_grad_()
    model.zero_grad()
    model(inputs).sum().backward()
    report(rank, "a layer unfrozen after wrapping", second)

    model, second = wrapped()
    model.double().float()
    model(inputs).sum().backward()
    report(rank, "cast to float64 and back", second)

    model, second = wrapped()
    model(inputs)  # No backward follows this forward.
    with model.no_sync():
        model(inputs).sum().backward()
    report(rank, "under no_sync, after a forward without a backward", second)


if __name__ == "__main__":
    in_two_ranks(rank_main)
