"""FastReID's TrainingSampler shuffles by numpy's global generator, so a rank that draws numbers loses its shard."""

# ruff: noqa: NPY002 - the global generator is the subject
import sys
from importlib.util import find_spec
from itertools import islice
from runpy import run_path
from types import ModuleType

import numpy as np
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

# The packages stay empty, because their __init__ imports models and backbones.
(folder,) = find_spec("fastreid").submodule_search_locations
for name in ("fastreid", "fastreid.utils"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [folder + name.removeprefix("fastreid").replace(".", "/")]
TrainingSampler = run_path(f"{folder}/data/samplers/data_sampler.py")["TrainingSampler"]


def two_epochs(rank, draws):
    """Return a rank's indices of two epochs; after each index, the program draws some numbers."""
    # The sampler asks only for the rank and the number of ranks, so no other process is needed.
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    sampler = TrainingSampler(6, seed=1)
    dist.destroy_process_group()
    indices = []
    for index in islice(sampler, 6):
        indices.append(int(index))
        np.random.rand(draws)
    return indices


own = [two_epochs(0, 0), two_epochs(1, 0)]
drawn = [two_epochs(0, 0), two_epochs(1, 1)]
print(f"no draws: {own}, expected any shards")
print(f"rank 1 draws: {drawn}, expected {own}")
np.random.seed(5)
first = np.random.rand()
np.random.seed(5)
two_epochs(0, 0)
print(f"after an iteration rand() gives {np.random.rand():.4f}, expected {first:.4f}")
