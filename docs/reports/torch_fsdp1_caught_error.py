"""FSDP1 adds gradients of a caught backward error to those of the next step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


def fail(_gradient):
    raise RuntimeError("an error in the user's backward, on all ranks")


def hook(_module, inputs):
    """Fail in the middle of the backward, once the second layer has its gradient."""
    inputs[0].register_hook(fail)


def wrapped(module):
    return FullyShardedDataParallel(module, use_orig_params=True, device_id=torch.device("cpu"))


def trained(sharded, failing):
    """Return the parameters after three steps, all ranks on the same batch."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)]
    model = nn.Sequential(*(wrapped(layer) if sharded else layer for layer in layers))
    model = wrapped(model) if sharded else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.arange(8.0).reshape(2, 4) / 8
    if failing:
        handle = layers[1].register_forward_pre_hook(hook)
        try:
            model(inputs).sum().backward()
        except RuntimeError:
            optimizer.zero_grad()
        handle.remove()
    for _ in range(3):
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if not sharded:
        return [parameter.detach() for parameter in model.parameters()]
    with FullyShardedDataParallel.summon_full_params(model):
        return [parameter.detach().clone() for parameter in model.parameters()]


plain = trained(sharded=False, failing=False)
for failing in (False, True):
    shards = trained(sharded=True, failing=failing)
    close = all(torch.allclose(p, s) for p, s in zip(plain, shards, strict=True))
    print(f"rank {rank}, {failing=}: as in plain training {close}, expected True")
dist.destroy_process_group()
