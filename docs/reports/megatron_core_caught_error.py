"""Megatron Core's DDP with overlap_grad_reduce fails after a caught exception in the first backward."""

from contextlib import suppress
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel as DDP
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn


def fail(_gradient):
    """Raise in the backward, as a hook of the user may."""
    raise ValueError("a bad batch")


dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
alone = [dist.new_group([each]) for each in range(ranks)][rank]
groups = ProcessGroupCollection()
groups.dp = groups.dp_cp = dist.group.WORLD
groups.tp = groups.pp = groups.ep = groups.expt_dp = alone
settings = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
for overlap in (False, True):
    module = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
    config = DistributedDataParallelConfig(overlap_grad_reduce=overlap)
    with mock.patch("torch.cuda.current_device", return_value="cpu"):  # It allocates there.
        model = DDP(settings, config, module, pg_collection=groups)
    model.zero_grad_buffer()
    outputs = module[0](torch.ones(1, 1))
    outputs.register_hook(fail)
    with suppress(ValueError):  # All ranks leave this batch out.
        module[1](outputs).sum().backward()
    result = "right"
    for _ in range(2):
        try:
            model.zero_grad_buffer()
            module[1](module[0](torch.ones(1, 1))).sum().backward()
            model.finish_grad_sync()
        except AssertionError as error:
            result = f"AssertionError in {error.__traceback__.tb_next.tb_frame.f_code.co_name}"
    print(f"rank {rank}, overlap {overlap}: the steps after the caught exception: {result}")
dist.destroy_process_group()
