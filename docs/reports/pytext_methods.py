"""PyText's DistributedModel offers the methods of its module, and reduces nothing after a call of them."""

import sys
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

# The packages stay empty, because their __init__ need an old torchtext.
(folder,) = find_spec("pytext").submodule_search_locations
for name in ("pytext", "pytext.common", "pytext.models", "pytext.utils"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [folder + name.removeprefix("pytext").replace(".", "/")]
from pytext.models.distributed_model import DistributedModel  # noqa: E402 - after the packages

dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(nn.Module):
    """A layer, and a method that computes the loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

    def forward(self, inputs):
        return self.layer(inputs)

    def loss(self, inputs):
        return self.layer(inputs).sum()


for way in ("forward", "loss"):
    model = Model()
    wrapped = DistributedModel(model)
    inputs = torch.tensor([[float(rank + 1)]])
    (wrapped(inputs).sum() if way == "forward" else wrapped.loss(inputs)).backward()
    print(f"rank {rank}, by {way}: gradient {model.layer.weight.grad.item()}, expected 1.5")
dist.destroy_process_group()
