"""DDP with find_unused_parameters=True hangs if the loss of one rank reaches no parameter."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Chooses(nn.Module):
    """A layer that a forward may pass by."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def forward(self, inputs, use):
        return self.layer(inputs) if use else inputs * 1


dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
module = Chooses()
model = DDP(module, find_unused_parameters=True)
inputs = torch.full((1, 1), 2.0, requires_grad=True)
try:
    model(inputs, use=rank == 0).sum().backward()
    print(f"rank {rank}: gradient {module.layer.weight.grad}, expected 1.0")
    if rank:
        dist.barrier()  # Stay for as long as the other rank waits.
except RuntimeError:
    print(f"rank {rank}: waited for the other rank until the timeout")
