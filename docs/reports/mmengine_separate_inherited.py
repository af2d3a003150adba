"""Methods that MMSeparateDistributedDataParallel inherits from torch's DDP fail by AttributeError."""

import copy

import torch.distributed as dist
from mmengine.model import MMSeparateDistributedDataParallel
from torch import nn

dist.init_process_group("gloo")
model = MMSeparateDistributedDataParallel(nn.Sequential(nn.Linear(1, 1)))
for name, call in (
    ("join", lambda: model.join().__enter__()),
    ("deepcopy", lambda: copy.deepcopy(model)),
):
    try:
        call()
    except AttributeError as error:
        print(f"{name}: {type(error).__name__}: {error}")
dist.destroy_process_group()
