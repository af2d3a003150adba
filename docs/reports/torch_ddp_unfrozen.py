"""DDP reduces no gradient of a parameter that was frozen when it was wrapped."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
nn.init.ones_(first.weight)
second.requires_grad_(False)
model = DDP(nn.Sequential(first, second))
second.requires_grad_(True)
model(torch.full((1, 1), float(rank + 1))).sum().backward()
print(f"rank {rank}: gradient {second.weight.grad.item()}, expected 1.5 or an error")
dist.destroy_process_group()
