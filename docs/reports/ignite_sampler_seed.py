"""Iterating ignite's DistributedProxySampler seeds torch's global generator."""

import torch
from ignite.distributed.auto import DistributedProxySampler
from torch.utils.data import RandomSampler

torch.manual_seed(0)
sampler = DistributedProxySampler(RandomSampler(range(4)), num_replicas=2, rank=0)
for epoch in range(2):
    list(sampler)
    print(f"epoch {epoch}: dropout draws {torch.rand(2).tolist()}, expected new numbers")
