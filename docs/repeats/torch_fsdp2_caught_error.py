"""FSDP2 of torch 2.13: an exception caught as the first backward starts, and the steps after it are not what they would be.

    python docs/repeats/torch_fsdp2_caught_error.py

Nothing is raised. Plain torch, two ranks on the same batch, so that the parameters must be those of
plain training.
"""

import sys

import torch
from meet import in_two_ranks
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def fail(_gradient: Tensor) -> None:
    """What a user's backward may do, such as run out of memory."""
    raise RuntimeError("an exception of the user's own")


def trained(*, sharded: bool, failing: bool) -> list[Tensor]:
    """The parameters after three steps, before the first of which a backward may fail."""
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
    # After the exception they are no DTensors any more.
    return [
        parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        for parameter in module.parameters()
    ]


def rank_main(rank: int) -> None:
    """With and without the exception."""
    plain = trained(sharded=False, failing=False)
    for failing in (False, True):
        found = trained(sharded=True, failing=failing)
        off = max(float((one - other).abs().max()) for one, other in zip(plain, found, strict=True))
        sys.stdout.write(
            f"rank {rank}, {'after an exception' if failing else 'undisturbed'}: off by {off:.2g}\n"
        )


if __name__ == "__main__":
    in_two_ranks(rank_main)
