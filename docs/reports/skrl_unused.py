"""skrl's reduce_parameters averages different gradients with each other if ranks use different layers."""

import os
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

# A rank of several would make an NCCL group when it imports skrl.
with mock.patch.dict(os.environ, WORLD_SIZE="1"):
    from skrl import config
    from skrl.models.torch import Model

config.torch._world_size = 2
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
layers[rank](torch.tensor([[float(rank + 1)]])).sum().backward()
Model.reduce_parameters(layers)
for number, layer in enumerate(layers):
    gradient = layer.weight.grad
    value = None if gradient is None else gradient.item()
    print(f"rank {rank}, layer {number}: gradient {value}, expected {(number + 1) / 2}")
dist.destroy_process_group()
