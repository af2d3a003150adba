"""pytorch-pfn-extras' DistributedDataParallel reduces nothing if the loss leaves the first output out."""

import torch
import torch.distributed as dist
from pytorch_pfn_extras.nn.parallel import DistributedDataParallel
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(nn.Module):
    """A layer whose forward returns two outputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def forward(self, inputs):
        return self.layer(inputs), self.layer(inputs)


for output in (0, 1):
    module = Model()
    outputs = DistributedDataParallel(module)(torch.full((1, 1), float(rank + 1)))
    outputs[output].sum().backward()
    gradient = module.layer.weight.grad.item()
    print(f"rank {rank}, loss of output {output}: gradient {gradient}, expected 1.5")
dist.destroy_process_group()
