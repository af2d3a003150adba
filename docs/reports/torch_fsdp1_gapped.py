"""FSDP1 with use_orig_params takes its neighbour's memory for a parameter with gaps."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(nn.Module):
    """A parameter with gaps, and another one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(8.0)[::2])
        self.other = nn.Parameter(torch.full((4,), 9.0))

    def forward(self):
        return self.weight * 1


module = Model()
expected = module.weight.tolist()
model = FSDP(module, use_orig_params=True, device_id=torch.device("cpu"))
print(f"rank {rank}: parameter in forward {model().tolist()}, expected {expected} or an error")
dist.destroy_process_group()
