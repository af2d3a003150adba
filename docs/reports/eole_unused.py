"""eole averages different gradients with each other if ranks use different layers."""

from importlib.util import find_spec
from runpy import run_path

import torch
import torch.distributed as dist
from torch import nn

# The file by itself, because the package around it needs dozens of others.
(folder,) = find_spec("eole").submodule_search_locations
reduce = run_path(f"{folder}/utils/distributed.py")["all_reduce_and_rescale_tensors"]

dist.init_process_group("gloo")
rank = dist.get_rank()
layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
layers[rank](torch.tensor([[float(rank + 1)]])).sum().backward()
# As in `synchronize` of eole/trainer.py.
reduce([each.grad.data for each in layers.parameters() if each.grad is not None], 2.0)
for number, layer in enumerate(layers):
    gradient = layer.weight.grad
    value = None if gradient is None else gradient.item()
    print(f"rank {rank}, layer {number}: gradient {value}, expected {(number + 1) / 2}")
dist.destroy_process_group()
