"""FSDP2 trains a layer that was frozen after a forward without gradients."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
inputs = torch.ones(1, 1)
for wrap in (fully_shard, replicate):
    for evaluates in (False, True):
        model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        wrap(model)
        if evaluates:
            with torch.no_grad():
                model(inputs)
        model[0].requires_grad_(False)
        for step in range(2):
            model(inputs).sum().backward()
            gradient = model[0].weight.grad
            value = None if gradient is None else gradient.full_tensor().item()
            print(
                f"rank {rank}, {wrap.__name__}, {evaluates=}, step {step}: "
                f"frozen layer's gradient {value}, expected None"
            )
dist.destroy_process_group()
