"""PhysicsNeMo's RestartableDistributedSampler accepts ranks that do not exist."""

from importlib.util import find_spec
from runpy import run_path

# The file by itself, because the package around it imports every model.
(folder,) = find_spec("physicsnemo").submodule_search_locations
samplers = run_path(f"{folder}/experimental/datapipes/healda/samplers.py")

for rank in (0, 1, -1, 2):
    sampler = samplers["RestartableDistributedSampler"](range(6), rank=rank, num_replicas=2)
    sampler.set_epoch(0)
    try:
        yielded = [*sampler]
    except IndexError as error:
        yielded = f"IndexError: {error}"
    expected = "its share" if rank in (0, 1) else "a ValueError"
    print(f"rank {rank} of 2: {yielded}, expected {expected}")
