"""rsl_rl's PPO broadcasts wrong elements of a parameter with gaps, and no buffer that a state_dict leaves out."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from rsl_rl.algorithms import PPO
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Module()
model.weight = nn.Parameter(torch.full((2, 2), float(rank))[:, :1])  # Its elements lie apart.
model.register_buffer("saved", torch.full((1,), float(rank)))
model.register_buffer("unsaved", torch.full((1,), float(rank)), persistent=False)
PPO.broadcast_parameters(SimpleNamespace(_raw_actor=model, _raw_critic=nn.Module(), rnd=None))
for name, tensor in (*model.named_parameters(), *model.named_buffers()):
    print(f"rank {rank}: {name} {tensor.flatten().tolist()}, expected 0 as on rank 0")
dist.destroy_process_group()
