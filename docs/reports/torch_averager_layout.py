"""PeriodicModelAverager makes every parameter contiguous, so later sums have another order."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

dist.init_process_group("gloo")
rank = dist.get_rank()
module = nn.Module()
module.transposed = nn.Parameter(torch.ones(7, 4).t())
module.last = nn.Parameter(torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
before = {name: parameter.stride() for name, parameter in module.named_parameters()}
for parameter in module.parameters():
    parameter.grad = torch.ones_like(parameter)
PeriodicModelAverager(period=2).average_parameters(module.parameters())
for name, parameter in module.named_parameters():
    print(f"rank {rank}: {name} has strides {parameter.stride()}, expected {before[name]}")
dist.destroy_process_group()
