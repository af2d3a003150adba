"""Megatron Core's `broadcast_params` sends wrong elements of a parameter with gaps, and no buffers."""

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

module = nn.Module()
module.gapped = nn.Parameter(torch.full((2, 4), float(rank))[:, ::2])
module.register_buffer("buffer", torch.full((2,), float(rank)))
with mock.patch("torch.cuda.current_device", return_value="cpu"):  # It allocates there.
    model = DDP(settings, DistributedDataParallelConfig(), module, pg_collection=groups)
model.broadcast_params()
print(f"rank {rank}: parameter {module.gapped.tolist()}, expected {torch.zeros(2, 2).tolist()}")
print(f"rank {rank}: buffer {module.buffer.tolist()}, expected {torch.zeros(2).tolist()}")
dist.destroy_process_group()
