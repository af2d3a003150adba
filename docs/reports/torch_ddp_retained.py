"""DDP does not synchronise a second backward through the same forward."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
layer = nn.Linear(1, 1, bias=False)
model = DDP(layer)
loss = model(torch.full((1, 1), float(rank + 1))).sum()
for name in ("first", "second"):
    loss.backward(retain_graph=True)
    print(f"rank {rank}, {name} backward: gradient {layer.weight.grad.item()}, expected 1.5")
    model.zero_grad()
dist.destroy_process_group()
