"""DDP reduces no gradient after its parameters were cast to another dtype and back."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
layer = nn.Linear(1, 1, bias=False)
model = DDP(layer).double().float()
model(torch.full((1, 1), float(rank + 1))).sum().backward()
print(f"rank {rank}: gradient {layer.weight.grad.item()}, expected 1.5")
dist.destroy_process_group()
