"""pytorch-pfn-extras' DistributedDataParallel waits for ranks outside its process group."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from pytorch_pfn_extras.nn.parallel import DistributedDataParallel
from torch import nn

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
group = dist.new_group([0])
if rank == 0:
    for negotiate in (False, True):
        model = DistributedDataParallel(
            nn.Linear(1, 1), negotiate_grads=negotiate, process_group=group
        )
        try:
            model(torch.ones(1, 1)).sum().backward()
            print(f"negotiate_grads={negotiate}: trained in its group")
        except RuntimeError:
            print(f"negotiate_grads={negotiate}: waited for rank 1, which is not in the group")
else:
    time.sleep(8)  # Stay for as long as rank 0 waits.
