"""flashy's sync_model divides a sparse gradient by the number of ranks, and does not reduce it."""

import torch
import torch.distributed as dist
from flashy.distrib import sync_model
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
for sparse in (False, True):
    model = nn.Embedding(2, 1, sparse=sparse)
    nn.init.constant_(model.weight, 0.5)
    model(torch.tensor([rank])).square().sum().backward()
    sync_model(model)
    gradient = model.weight.grad.to_dense().flatten().tolist()
    print(f"rank {rank}, {sparse=}: gradient {gradient}, expected [0.5, 0.5]")
dist.destroy_process_group()
