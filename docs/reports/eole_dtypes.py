"""eole's all_reduce_and_rescale_tensors rounds gradients to the dtype of the first one."""

from importlib.util import find_spec
from runpy import run_path

import torch
import torch.distributed as dist

# The file by itself, because the package around it needs dozens of others.
(folder,) = find_spec("eole").submodule_search_locations
reduce = run_path(f"{folder}/utils/distributed.py")["all_reduce_and_rescale_tensors"]

dist.init_process_group("gloo")
rank = dist.get_rank()
for first, second, value in (
    (torch.float32, torch.float64, 1 + 2**-40),
    (torch.bfloat16, torch.float32, 1 + 2**-20),
    (torch.float32, torch.complex64, 1 + 2j),
):
    gradients = [torch.ones(1, dtype=first), torch.full((1,), value, dtype=second)]
    reduce(gradients, 2.0)
    print(f"rank {rank}, {second} after {first}: {gradients[1].item()}, expected {value}")
dist.destroy_process_group()
