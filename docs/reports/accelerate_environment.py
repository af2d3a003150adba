"""accelerate ignores the process group that there is if the launcher's variables are missing."""

import os

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
    del os.environ[name]  # As in a process that multiprocessing has started.
layer = nn.Linear(1, 1, bias=False)
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(layer)
accelerator.backward(model(torch.full((1, 1), float(rank + 1))).sum())
print(f"rank {rank}: {accelerator.num_processes} processes, expected 2 or an error")
print(f"rank {rank}: gradient {layer.weight.grad.item()}, expected 1.5 or an error")
dist.destroy_process_group()
