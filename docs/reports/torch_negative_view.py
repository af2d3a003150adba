"""all_reduce of a tensor whose negative bit is set changes nothing."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
values = torch.tensor([1 + 2j, 3 + 4j]).conj().imag  # Its values are -2 and -4.
print(f"rank {rank}: {values.is_neg()=}")
dist.all_reduce(values)
print(f"rank {rank}: {values.tolist()}, expected [-4.0, -8.0] or an error")
dist.destroy_process_group()
