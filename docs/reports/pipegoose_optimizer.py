"""pipegoose's DistributedOptimizer broadcasts a copy of the parameters, so each rank steps its share alone."""

import torch
from pipegoose.distributed.parallel_context import ParallelContext
from pipegoose.optim.zero.optim import DistributedOptimizer
from torch import nn

context = ParallelContext.from_torch(
    tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=2
)
rank = torch.distributed.get_rank()
layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(4))
for layer in layers:
    nn.init.zeros_(layer.weight)
optimizer = DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=1.0), context)
for layer in layers:
    layer.weight.grad = torch.ones(1, 1)  # As after the average over the ranks.
optimizer.step()
print(f"rank {rank}: parameters {[layer.weight.item() for layer in layers]}, expected {[-1.0] * 4}")
