"""FSDP1 forgets the gradients of no_sync for a parameter whose gradient was set to None."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

dist.init_process_group("gloo")
rank = dist.get_rank()


def gradients(cleared):
    """Return the gradients after the second of two steps of two backwards each."""
    layer = nn.Linear(1, 1)
    model = FullyShardedDataParallel(
        layer,
        use_orig_params=True,
        sharding_strategy=ShardingStrategy.NO_SHARD,
        device_id=torch.device("cpu"),
    )
    for _ in range(2):
        for parameter in cleared(layer):
            parameter.grad = None
        for parameter in layer.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        with model.no_sync():
            model(torch.ones(1, 1)).sum().backward()
        model(torch.ones(1, 1)).sum().backward()
    return [parameter.grad.item() for parameter in layer.parameters()]


for name, cleared in (
    ("both gradients set to None", lambda layer: [layer.weight, layer.bias]),
    ("one set to None, one zeroed", lambda layer: [layer.weight]),
):
    print(f"rank {rank}, {name}: gradients {gradients(cleared)}, expected [2.0, 2.0]")
dist.destroy_process_group()
