"""FSDP1 with HYBRID_SHARD synchronises nothing if a shard group has one rank."""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = FSDP(
        nn.Linear(2, 1, bias=False),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
for each in caught:
    if "NO_SHARD" in str(each.message):
        print(f"rank {rank}: {each.message}")
model(torch.full((1, 2), 1.0 + rank)).sum().backward()
(weight,) = model.parameters()
print(f"rank {rank}: gradient {weight.grad.flatten().tolist()}, expected [1.5, 1.5]")
dist.destroy_process_group()
