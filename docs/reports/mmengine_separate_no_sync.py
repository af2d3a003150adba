"""mmengine's MMSeparateDistributedDataParallel.no_sync raises, or synchronises all the same."""

import torch
import torch.distributed as dist
from mmengine.model import MMSeparateDistributedDataParallel
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(nn.Module):
    """Two parts with parameters, as a generator and a discriminator."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.second = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.first.weight)
        nn.init.ones_(self.second.weight)


model = MMSeparateDistributedDataParallel(Model())
inputs = torch.full((1, 1), float(rank + 1))
try:
    with model.no_sync():
        (model.module.first(inputs) + model.module.second(inputs)).sum().backward()
except RuntimeError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}, expected no error")
for name in ("first", "second"):
    gradient = getattr(model.module, name).module.weight.grad.item()
    print(f"rank {rank}: gradient of {name} {gradient}, expected {rank + 1.0}")
dist.destroy_process_group()
