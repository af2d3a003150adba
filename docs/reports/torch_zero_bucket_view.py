"""ZeroRedundancyOptimizer changes the layout of a transposed parameter, and DDP permutes its gradient."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
for as_view in (False, True):
    module = nn.Linear(2, 2, bias=False)
    module.weight = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T)
    model = DDP(module)
    ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=1.0, parameters_as_bucket_view=as_view
    )
    (model(torch.tensor([[1.0, 2.0]])) * torch.tensor([1.0, 3.0])).sum().backward()
    gradient = module.weight.grad.tolist()
    print(f"rank {rank}, {as_view=}: gradient {gradient}, expected [[1.0, 2.0], [3.0, 6.0]]")
dist.destroy_process_group()
