"""PeriodicModelAverager averages different parameters with each other if ranks used different ones."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

dist.init_process_group("gloo")
rank = dist.get_rank()
branches = nn.ParameterList([torch.full((1,), 1.0), torch.full((1,), 100.0)])
branches[rank].sum().backward()  # In local SGD, each rank's batch takes a branch of its own.
PeriodicModelAverager(period=2).average_parameters(branches.parameters())
print(f"rank {rank}: {[p.item() for p in branches]}, expected [1.0, 100.0]")
dist.destroy_process_group()
