"""torch 2.13's `replicate` broadcasts parameters but no buffers: ranks keep their own.

The script uses plain torch and two ranks. Run it from the checkout's root:

    python docs/repeats/torch_replicate_buffers.py
"""

import sys
import warnings

import torch
from meet import in_two_ranks
from torch import nn
from torch.distributed._composable.replicate import replicate


def rank_main(rank: int) -> None:
    """Build different buffers, wrap the module, and print them when the first forward starts."""
    warnings.simplefilter("ignore")  # `replicate` is deprecated.
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    norm.running_mean.fill_(float(rank))

    def show(layer: nn.Module, _inputs: object) -> None:
        sys.stdout.write(f"rank {rank}: {layer.running_mean}\n")

    norm.register_forward_pre_hook(show)
    replicate(module)(torch.randn(4, 2))


if __name__ == "__main__":
    in_two_ranks(rank_main)
