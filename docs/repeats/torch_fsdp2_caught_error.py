"""FSDP2 of torch 2.13: wrong steps after an exception caught in the first backward.

The exception is raised and caught as the first backward starts. Nothing is raised later. The script
uses plain torch, with two ranks on the same batch, so that the parameters must be those of plain
training.

Run it from the checkout's root:

    python docs/repeats/torch_fsdp2_caught_error.py
"""

import sys

import torch
from meet import in_two_ranks
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def fail(_gradient: Tensor) -> None:
    """Raise an error, as a user's backward may do, for example when it runs out of memory."""
    raise RuntimeError("an exception of the user's own")


def trained(*, sharded: bool, failing: bool) -> list[Tensor]:
    """Return the parameters after three steps; before the first step, a backward may fail."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    if sharded:
        fully_shard(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    inputs = torch.arange(8.0).reshape(2, 4) / 8
    if failing:
        outputs: Tensor = module(inputs)
        outputs.register_hook(fail)
        try:
            outputs.sum().backward()
        except RuntimeError:
            optimizer.zero_grad()
    for _ in range(3):
        module(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    # After the exception, the parameters are no longer DTensors.
    return [
        parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        for parameter in module.parameters()
    ]


def rank_main(rank: int) -> None:
    """Train with and without the exception, and print the difference from plain training."""
    plain = trained(sharded=False, failing=False)
    for failing in (False, True):
        parameters = trained(sharded=True, failing=failing)
        off = max(
            float((expected - actual).abs().max())
            for expected, actual in zip(plain, parameters, strict=True)
        )
        sys.stdout.write(
            f"rank {rank}, {'after an exception' if failing else 'undisturbed'}: off by {off:.2g}\n"
        )


if __name__ == "__main__":
    in_two_ranks(rank_main)
