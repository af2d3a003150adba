"""Megatron Core's DDP with overlap_grad_reduce raises on a rank that leaves a layer out in a step."""

from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel as DDP
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank, ranks = dist.get_rank(), dist.get_world_size()
alone = [dist.new_group([each]) for each in range(ranks)][rank]
groups = ProcessGroupCollection()
groups.dp = groups.dp_cp = dist.group.WORLD
groups.tp = groups.pp = groups.ep = groups.expt_dp = alone
settings = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
module = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
config = DistributedDataParallelConfig(overlap_grad_reduce=True)
with mock.patch("torch.cuda.current_device", return_value="cpu"):  # It allocates there.
    model = DDP(settings, config, module, pg_collection=groups)
for step in range(2):
    model.zero_grad_buffer()
    used = module[:1] if step == 1 and rank == 1 else module
    sum(layer(torch.ones(1, 1)).sum() for layer in used).backward()
    try:
        model.finish_grad_sync()
        print(f"rank {rank}, step {step}: gradient {module[1].weight.main_grad.item()}")
    except AssertionError as error:
        print(f"rank {rank}, step {step}: AssertionError: {error}")
        dist.monitored_barrier(timeout=timedelta(seconds=30))  # Stay while the other rank waits.
    except RuntimeError:
        print(f"rank {rank}, step {step}: waited for the other rank until the timeout")
