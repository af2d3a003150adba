"""dmlcloud's wrap_ddp leaves the buffers of each rank as the rank built them."""

import sys
from importlib.util import find_spec
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn

# The packages stay empty, because their __init__ imports a tracker, tables and more.
(folder,) = find_spec("dmlcloud").submodule_search_locations
for name in ("dmlcloud", "dmlcloud.core"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [folder + name.removeprefix("dmlcloud").replace(".", "/")]
from dmlcloud.core.model import wrap_ddp  # noqa: E402 - after the packages

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False))
nn.init.constant_(model[0].weight, float(rank))
model[1].running_mean.fill_(float(rank))
wrap_ddp(model, torch.device("cpu"), verbose=False)
weight, mean = model[0].weight.item(), model[1].running_mean.item()
print(f"rank {rank}: weight {weight}, running_mean {mean}, expected 0.0 and 0.0")
dist.destroy_process_group()
