"""fairscale's ShardedDataParallel steps by local gradients after zero_grad() has set them to None."""

import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
for set_to_none in (False, True):
    layers = [nn.Linear(1, 1, bias=False) for _ in range(4)]
    for layer in layers:
        nn.init.ones_(layer.weight)
    module = nn.Sequential(*layers)
    optimizer = OSS(module.parameters(), torch.optim.SGD, lr=1e-3)
    model = ShardedDataParallel(module, optimizer)
    before = [layer.weight.item() for layer in layers]
    for _ in range(2):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.full((1, 1), float(rank + 1))).sum().backward()
    optimizer.step()
    moved = [
        round((b - layer.weight.item()) * 1e3, 2) for b, layer in zip(before, layers, strict=True)
    ]
    print(f"rank {rank}, {set_to_none=}: steps / lr {moved}, expected [1.5, 1.5, 1.5, 1.5]")
dist.destroy_process_group()
