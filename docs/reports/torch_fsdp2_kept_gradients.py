"""fully_shard keeps two flat gradient buffers if some gradients were zeroed and others removed."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()


def held(mixed):
    """Return the bytes of the storages of this rank's gradients after the second backward."""
    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4))))
    for _ in range(2):
        for number, parameter in enumerate(model.parameters()):
            if parameter.grad is not None and mixed and number % 2:
                parameter.grad.zero_()
            else:
                parameter.grad = None
        model(torch.ones(2, 8)).sum().backward()
    storages = [parameter.grad.to_local().untyped_storage() for parameter in model.parameters()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


for mixed in (False, True):
    print(f"rank {rank}, {mixed=}: {held(mixed)} bytes of gradients, expected 512")
dist.destroy_process_group()
