"""Both quantization hooks raise on a plain linear layer."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
for name in ("quantization_pertensor_hook", "quantization_perchannel_hook"):
    model = DDP(nn.Linear(3, 2))
    model.register_comm_hook(dist.group.WORLD, getattr(quantization_hooks, name))
    try:
        model(torch.ones(1, 3)).sum().backward()
        print(f"rank {rank}, {name}: no error, as expected")
    except RuntimeError as error:
        cause = str(error).partition("IndexError: ")[2][:31]
        print(f"rank {rank}, {name}: {cause!r}, expected no error")
dist.destroy_process_group()
