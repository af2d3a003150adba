"""DDP with static_graph=True fails an internal assertion if the first backward is in no_sync."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(nn.Linear(1, 1), static_graph=True)
try:
    with model.no_sync():
        model(torch.ones(1, 1)).sum().backward()
    print(f"rank {rank}: no error, as expected")
except RuntimeError as error:
    print(f"rank {rank}: {str(error).partition(' INTERNAL')[0]} INTERNAL ASSERT, expected no error")
dist.destroy_process_group()
