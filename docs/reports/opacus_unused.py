"""opacus's average_gradients raises if a parameter has no gradient."""

import warnings

import torch
import torch.distributed as dist
from opacus.distributed import average_gradients
from torch import nn

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
module[0](torch.ones(1, 1)).sum().backward()  # The second layer is not used.
try:
    average_gradients(module)
    print(f"rank {rank}: no error, as expected")
except TypeError as error:
    print(f"rank {rank}: TypeError: {str(error).splitlines()[0]}, expected no error")
dist.destroy_process_group()
