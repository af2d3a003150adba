"""Gloo's all_reduce with MIN or MAX loses a NaN, depending on the rank that has it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
    for source in range(2):
        value = torch.tensor([float("nan") if rank == source else 1.0])
        dist.all_reduce(value, op=op)
        name = str(op).rpartition(".")[2]
        print(f"rank {rank}, {name}, NaN on rank {source}: {value.item()}, expected nan")
dist.destroy_process_group()
