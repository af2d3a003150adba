"""flashy's broadcast_model sends wrong elements of a parameter with gaps, and no integer buffers."""

import torch
import torch.distributed as dist
from flashy.distrib import broadcast_model
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Module()
model.weight = nn.Parameter(torch.full((2, 2), float(rank))[:, :1])  # Its elements lie apart.
model.register_buffer("mean", torch.full((1,), float(rank)))
model.register_buffer("count", torch.tensor(rank))
broadcast_model(model)
for name, tensor in model.state_dict().items():
    print(f"rank {rank}: {name} {tensor.flatten().tolist()}, expected 0 as on rank 0")
dist.destroy_process_group()
