"""rsl_rl's PPO averages different gradients with each other if ranks use different layers."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from rsl_rl.algorithms import PPO
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
layers[rank](torch.tensor([[float(rank + 1)]])).sum().backward()
PPO.reduce_parameters(
    SimpleNamespace(
        actor=layers, critic=nn.Module(), rnd=None, gpu_world_size=2, grad_reduce_bucket_mb=32
    )
)
for number, layer in enumerate(layers):
    gradient = layer.weight.grad
    value = None if gradient is None else gradient.item()
    print(f"rank {rank}, layer {number}: gradient {value}, expected {(number + 1) / 2}")
dist.destroy_process_group()
