"""DeepSpeed's engine broadcasts parameters from rank 0, but no buffers."""

import os

import torch
import torch.distributed as dist
from torch import nn

os.environ["DS_ACCELERATOR"] = "cpu"  # Otherwise it warns that it found no other.
import deepspeed

# The operation is for inference, and DeepSpeed would compile it.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False))
nn.init.constant_(model[0].weight, float(rank))
model[1].running_mean.fill_(float(rank))
deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={"train_micro_batch_size_per_gpu": 1},
)
weight, mean = model[0].weight.item(), model[1].running_mean.item()
print(f"rank {rank}: weight {weight}, running_mean {mean}, expected 0.0 and 0.0")
dist.destroy_process_group()
