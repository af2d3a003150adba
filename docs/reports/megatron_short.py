"""Megatron Bridge's MegatronPretrainingRandomSampler divides by zero if there is no whole global batch."""

from importlib.util import find_spec
from runpy import run_path

# The file by itself, because the package around it imports every model.
(folder,) = find_spec("megatron").submodule_search_locations
samplers = run_path(f"{folder}/bridge/data/samplers.py")

place = {
    "total_samples": 5,
    "consumed_samples": 0,
    "micro_batch_size": 3,
    "data_parallel_rank": 0,
    "data_parallel_size": 2,
}
for name, data in {
    "MegatronPretrainingSampler": {},
    "MegatronPretrainingRandomSampler": {"dataset": range(5), "data_sharding": True},
}.items():
    try:
        yielded = [*samplers[name](**place, **data)]
    except ZeroDivisionError as error:
        yielded = f"ZeroDivisionError: {error}"
    print(f"{name}: {yielded}, expected []")
