"""Megatron Bridge's samplers accept a rank below 0, and yield nothing or another rank's samples."""

from importlib.util import find_spec
from runpy import run_path

# The file by itself, because the package around it imports every model.
(folder,) = find_spec("megatron").submodule_search_locations
samplers = run_path(f"{folder}/bridge/data/samplers.py")

for rank in (0, 1, -1):
    place = {
        "total_samples": 8,
        "consumed_samples": 0,
        "micro_batch_size": 2,
        "data_parallel_rank": rank,
        "data_parallel_size": 2,
    }
    in_order = samplers["MegatronPretrainingSampler"](**place)
    shuffled = samplers["MegatronPretrainingRandomSampler"](range(8), **place, data_sharding=True)
    expected = "a ValueError" if rank < 0 else "its share"
    print(f"rank {rank} of 2, in order: {[*in_order]}, expected {expected}")
    print(f"rank {rank} of 2, shuffled: {[*shuffled]}, expected {expected}")
