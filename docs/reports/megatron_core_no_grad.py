"""Megatron Core's DDP raises an AttributeError if it wraps a module under `torch.no_grad()`."""

from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel as DDP
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
alone = [dist.new_group([each]) for each in range(ranks)][rank]
groups = ProcessGroupCollection()
groups.dp = groups.dp_cp = dist.group.WORLD
groups.tp = groups.pp = groups.ep = groups.expt_dp = alone
settings = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
module = nn.Linear(1, 1, bias=False)
try:
    with mock.patch("torch.cuda.current_device", return_value="cpu"), torch.no_grad():
        model = DDP(settings, DistributedDataParallelConfig(), module, pg_collection=groups)
    print(f"rank {rank}: wrapped")
except AttributeError as error:
    print(f"rank {rank}: AttributeError: {error}")
dist.destroy_process_group()
