"""Gloo's scatter and reduce_scatter into a view with gaps leave a part of it as it was, or unreduced."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
inputs = [torch.full((2,), float(r + 1)) for r in range(2)]

output = torch.zeros(4)[::2]
dist.scatter(output, inputs if rank == 0 else None, src=0)
print(f"rank {rank}, scatter: {output.tolist()}, expected {[rank + 1.0] * 2}")

output = torch.zeros(4)[::2]
dist.reduce_scatter(output, inputs)
print(f"rank {rank}, reduce_scatter: {output.tolist()}, expected {[2 * (rank + 1.0)] * 2}")
dist.destroy_process_group()
