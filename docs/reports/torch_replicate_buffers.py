"""replicate broadcasts parameters when it wraps, but no buffers."""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate

warnings.simplefilter("ignore")  # It is deprecated.
dist.init_process_group("gloo")
rank = dist.get_rank()
norm = nn.BatchNorm1d(1)
nn.init.constant_(norm.weight, rank)
norm.running_mean.fill_(rank)


def show(layer, _inputs):
    weight, mean = layer.weight.item(), layer.running_mean.item()
    print(f"rank {rank}, first forward: weight {weight}, running_mean {mean}, expected 0.0 and 0.0")


norm.register_forward_pre_hook(show)
replicate(nn.Sequential(norm))(torch.randn(4, 1))
dist.destroy_process_group()
