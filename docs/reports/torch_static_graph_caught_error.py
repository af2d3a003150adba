"""DDP with static_graph=True reduces no gradient after an exception caught in the first backward."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()


def fail(_gradient):
    raise RuntimeError("an error in the user's backward, on all ranks")


class Model(nn.Module):
    """A layer whose backward may fail."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def forward(self, inputs, failing=False):
        outputs = self.layer(inputs)
        if failing:
            outputs.register_hook(fail)
        return outputs


module = Model()
model = DDP(module, static_graph=True)
inputs = torch.full((1, 1), float(rank + 1))
try:
    model(inputs, failing=True).sum().backward()
except RuntimeError:
    model.zero_grad()
for step in range(3):
    model(inputs).sum().backward()
    print(f"rank {rank}, step {step}: gradient {module.layer.weight.grad.item()}, expected 1.5")
    model.zero_grad()
dist.destroy_process_group()
