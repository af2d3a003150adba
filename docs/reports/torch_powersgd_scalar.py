"""The PowerSGD hook raises on a model with a 0-d parameter, or with one without elements."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()


class Model(nn.Module):
    """A matrix, and a parameter of another shape."""

    def __init__(self, shape):
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(4, 4))
        self.other = nn.Parameter(torch.zeros(shape))

    def forward(self):
        return self.matrix.sum() + self.other.sum()


for shape in ((), (0,)):
    model = DDP(Model(shape))
    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook)
    try:
        for _ in range(3):
            model().backward()
        print(f"rank {rank}, {shape=}: no error, as expected")
    except (IndexError, RuntimeError) as error:
        print(
            f"rank {rank}, {shape=}: {type(error).__name__}: {str(error)[:40]}, expected no error"
        )
dist.destroy_process_group()
