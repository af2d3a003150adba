"""Megatron Core steps a parameter that was frozen after wrapping, by a main gradient of zeros."""

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
with mock.patch("torch.cuda.current_device", return_value="cpu"):  # It allocates there.
    model = DDP(settings, DistributedDataParallelConfig(), module, pg_collection=groups)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
for step in range(2):
    if step == 1:
        layer.weight.requires_grad_(False)
    before = layer.weight.item()
    model.zero_grad_buffer()
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    model.finish_grad_sync()
    # Megatron's optimizer does this before the step of the optimizer within it.
    FP32Optimizer.prepare_grads(mock.Mock(optimizer=optimizer, is_stub_optimizer=False))
    grad = layer.weight.grad.item()
    optimizer.step()
print(
    f"rank {rank}: gradient {grad}, the frozen weight went from {before} to {layer.weight.item()}"
)
dist.destroy_process_group()
