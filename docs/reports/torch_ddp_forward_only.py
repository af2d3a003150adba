"""After a forward without a backward, DDP reduces the next backward although it is in no_sync."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
layer = nn.Linear(1, 1, bias=False)
model = DDP(layer)
inputs = torch.full((1, 1), float(rank + 1))
model(inputs)  # For example a metric: no backward follows.
with model.no_sync():
    model(inputs).sum().backward()
print(f"rank {rank}: local gradient {layer.weight.grad.item()}, expected {rank + 1.0}")
dist.destroy_process_group()
