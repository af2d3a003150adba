"""FSDP1 with NO_SHARD trains a transposed parameter by permuted gradients."""

import copy
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

warnings.simplefilter("ignore")  # NO_SHARD is deprecated.
dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(nn.Module):
    """One parameter that is the transpose of a contiguous tensor, as in channels_last."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 2).t())

    def forward(self, inputs):
        return (self.weight * inputs).sum()


plain = Model()
model = FSDP(
    copy.deepcopy(plain),
    sharding_strategy=ShardingStrategy.NO_SHARD,
    use_orig_params=True,
    device_id=torch.device("cpu"),
)
inputs = torch.arange(6.0).reshape(2, 3)
model(inputs).backward()
plain(inputs).backward()
print(f"rank {rank}: gradient {model.weight.grad.tolist()}, expected {plain.weight.grad.tolist()}")
dist.destroy_process_group()
