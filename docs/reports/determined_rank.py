"""Determined's DistributedSampler accepts ranks that do not exist."""

from importlib.util import find_spec
from runpy import run_path

from torch.utils.data import SequentialSampler

# The file by itself, because the package around it imports the whole platform.
(folder,) = find_spec("determined").submodule_search_locations
samplers = run_path(f"{folder}/pytorch/samplers.py")

for rank in (0, 1, -1, 2):
    try:
        sampler = samplers["DistributedSampler"](
            SequentialSampler(range(4)), num_workers=2, rank=rank
        )
        yielded = f"{[*sampler]}, len {len(sampler)}"
    except ValueError:
        yielded = "a ValueError"
    expected = "its share" if rank in (0, 1) else "a ValueError"
    print(f"rank {rank} of 2: {yielded}, expected {expected}")
