"""Megatron Core's DDP reduces no gradient after its parameters were cast to another dtype and back."""

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
with mock.patch("torch.cuda.current_device", return_value="cpu"):  # It allocates there.
    model = DDP(settings, DistributedDataParallelConfig(), module, pg_collection=groups)
for cast in (False, True):
    if cast:
        module.double().float()
    model.zero_grad_buffer()
    module.weight.grad = None
    model(torch.full((1, 1), float(rank + 1))).sum().backward()
    model.finish_grad_sync()
    main, own = module.weight.main_grad.item(), module.weight.grad
    print(f"rank {rank}, cast {cast}: main_grad {main}, grad {own}, expected 1.5 and None")
dist.destroy_process_group()
