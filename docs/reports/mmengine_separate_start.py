"""MMSeparateDistributedDataParallel broadcasts no part that has nothing to train."""

import torch
import torch.distributed as dist
from mmengine.model import MMSeparateDistributedDataParallel
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(nn.Module):
    """A part that is trained, one that is frozen, and one that has only a buffer."""

    def __init__(self):
        super().__init__()
        self.trained = nn.Linear(1, 1, bias=False)
        self.frozen = nn.Linear(1, 1, bias=False).requires_grad_(False)
        self.counted = nn.Module()
        self.counted.register_buffer("count", torch.zeros(1))
        for tensor in (self.trained.weight, self.frozen.weight, self.counted.count):
            tensor.data.fill_(float(rank + 1))


model = MMSeparateDistributedDataParallel(Model()).module
print(f"rank {rank}: trained weight {model.trained.module.weight.item()}, expected 1.0")
print(f"rank {rank}: frozen weight {model.frozen.weight.item()}, expected 1.0")
print(f"rank {rank}: buffer {model.counted.count.item()}, expected 1.0")
dist.destroy_process_group()
