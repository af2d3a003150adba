"""ZeroRedundancyOptimizer sends wrong elements of a parameter that is not contiguous."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

dist.init_process_group("gloo")
rank = dist.get_rank()
strided = nn.Parameter(torch.arange(8.0).reshape(2, 4)[:, ::2])
other = nn.Parameter(torch.ones(2))
optimizer = ZeroRedundancyOptimizer([strided, other], torch.optim.SGD, lr=1.0)
expected = (strided - 1).tolist()
strided.grad = torch.ones(2, 2)
optimizer.step()
print(f"rank {rank}: parameter {strided.tolist()}, expected {expected}")
dist.destroy_process_group()
