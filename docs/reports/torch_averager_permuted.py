"""After PeriodicModelAverager's warm-up, DDP permutes the gradient of a transposed parameter."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(nn.Module):
    """One parameter that is the transpose of a contiguous tensor."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 2).t())

    def forward(self, inputs):
        return (self.weight * inputs).sum()


module = Model()
model = DDP(module)
averager = PeriodicModelAverager(period=2, warmup_steps=2)
optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
inputs = torch.arange(6.0).reshape(2, 3)
for step in range(5):
    optimizer.zero_grad()
    model(inputs).backward()
    print(f"rank {rank}, step {step}: gradient {module.weight.grad.tolist()}")
    optimizer.step()
print(f"rank {rank}, expected each step: {inputs.tolist()}")
dist.destroy_process_group()
