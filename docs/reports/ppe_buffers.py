"""pytorch-pfn-extras' DistributedDataParallel rounds integer buffers to float32."""

import torch
import torch.distributed as dist
from pytorch_pfn_extras.nn.parallel import DistributedDataParallel
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
module = nn.Linear(1, 1)
module.register_buffer("samples_seen", torch.tensor(2**24 + 1))
print(f"rank {rank}, before wrapping: {module.samples_seen.item()}")
DistributedDataParallel(module)
print(f"rank {rank}, after wrapping: {module.samples_seen.item()}, expected {2**24 + 1}")
dist.destroy_process_group()
