"""fairscale's OSS changes the layout of a transposed parameter, and DDP then permutes its gradient."""

import torch
import torch.distributed as dist
from fairscale.optim.oss import OSS
from torch import nn
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
OSS(model.parameters(), torch.optim.SGD, lr=0.1)
inputs = torch.arange(6.0).reshape(2, 3)
for step in range(2):
    model.zero_grad()
    model(inputs).backward()
    print(f"rank {rank}, step {step}: gradient {module.weight.grad.tolist()}")
print(f"rank {rank}, expected each step: {inputs.tolist()}")
dist.destroy_process_group()
