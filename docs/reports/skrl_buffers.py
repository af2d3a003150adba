"""skrl's broadcast_parameters broadcasts no buffer that a state_dict leaves out."""

import os
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

# A rank of several would make an NCCL group when it imports skrl.
with mock.patch.dict(os.environ, WORLD_SIZE="1"):
    from skrl.models.torch import Model

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Linear(1, 1, bias=False)
nn.init.constant_(model.weight, float(rank))
model.register_buffer("saved", torch.full((1,), float(rank)))
model.register_buffer("unsaved", torch.full((1,), float(rank)), persistent=False)
Model.broadcast_parameters(model)
for name, tensor in (*model.named_parameters(), *model.named_buffers()):
    print(f"rank {rank}: {name} {tensor.item()}, expected 0.0 as on rank 0")
dist.destroy_process_group()
