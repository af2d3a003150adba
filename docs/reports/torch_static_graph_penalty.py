"""DDP with static_graph=True reduces no gradient if the loss has a penalty on gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
for static_graph in (False, True):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = DDP(layer, static_graph=static_graph)
    inputs = torch.full((1, 1), float(rank + 1), requires_grad=True)
    for step in range(2):
        outputs = model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        (outputs.sum() + slope.square().sum()).backward()
        gradient = layer.weight.grad.item()
        print(f"rank {rank}, {static_graph=}, step {step}: gradient {gradient}, expected 3.5")
        model.zero_grad()
dist.destroy_process_group()
