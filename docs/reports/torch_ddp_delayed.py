"""DDP's delayed all-reduce runs under no_sync, and nothing waits for it."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
nn.init.ones_(first.weight)
model = DDP(
    nn.Sequential(first, second),
    delay_all_reduce_named_params=[("1.weight", second.weight)],
    param_to_hook_all_reduce=first.weight,
)
if rank == 1:
    time.sleep(5)
with model.no_sync():
    model(torch.full((1, 1), float(rank + 1))).sum().backward()
if rank == 0:  # Rank 1 still sleeps.
    print(f"rank 0, after backward: local gradient {second.weight.grad.item()}, expected 1.0")
dist.barrier()
time.sleep(1)
print(f"rank {rank}, later: local gradient {second.weight.grad.item()}, expected {rank + 1.0}")
dist.destroy_process_group()
