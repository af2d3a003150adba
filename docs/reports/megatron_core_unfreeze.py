"""Megatron Core reduces no gradient of a parameter that was frozen when it was wrapped."""

from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel as DDP
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer.optimizer import FP32Optimizer
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
layer = nn.Linear(1, 1, bias=False)
module = nn.Sequential(layer, nn.Linear(1, 1, bias=False))
nn.init.ones_(layer.weight)
nn.init.ones_(module[1].weight)
layer.weight.requires_grad_(False)
with mock.patch("torch.cuda.current_device", return_value="cpu"):  # It allocates there.
    model = DDP(settings, DistributedDataParallelConfig(), module, pg_collection=groups)
layer.weight.requires_grad_(True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
model.zero_grad_buffer()
model(torch.full((1, 1), float(rank + 1))).sum().backward()
model.finish_grad_sync()
# Megatron's optimizer does this before the step of the optimizer within it.
FP32Optimizer.prepare_grads(mock.Mock(optimizer=optimizer, is_stub_optimizer=False))
grad = layer.weight.grad.item()
optimizer.step()
print(f"rank {rank}: gradient {grad}, weight {layer.weight.item()}")
dist.destroy_process_group()
