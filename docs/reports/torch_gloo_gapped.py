"""Gloo's all_reduce, reduce and broadcast of a view with gaps write to memory outside the view."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
collectives = {
    "all_reduce": (dist.all_reduce, [[3.0, 9.0, 3.0, 9.0]] * 2),
    "broadcast": (lambda view: dist.broadcast(view, 0), [[1.0, 9.0, 1.0, 9.0]] * 2),
    "reduce": (lambda view: dist.reduce(view, 0), [[3.0, 9.0, 3.0, 9.0], [2.0, 9.0, 2.0, 9.0]]),
}
for name, (collective, expected) in collectives.items():
    memory = torch.full((4,), 9.0)
    view = memory[::2]
    view.fill_(rank + 1)
    collective(view)
    print(f"rank {rank}, {name}: {memory.tolist()}, expected {expected[rank]}")
dist.destroy_process_group()
