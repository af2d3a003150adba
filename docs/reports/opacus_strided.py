"""opacus's DDP broadcasts wrong elements of a parameter with gaps, and broadcasts no buffers."""

import warnings

import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import nn

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
module = nn.BatchNorm1d(2)
module.weight = nn.Parameter((torch.arange(4.0) + 100 * rank)[::2])
module.running_mean.fill_(100 * rank)
DifferentiallyPrivateDistributedDataParallel(module)
print(f"rank {rank}: weight {module.weight.tolist()}, expected [0.0, 2.0]")
print(f"rank {rank}: running_mean {module.running_mean.tolist()}, expected [0.0, 0.0]")
dist.destroy_process_group()
