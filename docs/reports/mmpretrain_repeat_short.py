"""mmpretrain's RepeatAugSampler raises if it needs more padding than there are repeated samples."""

import sys
from importlib.util import find_spec
from runpy import run_path
from types import ModuleType

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

# The package stays empty, because its __init__ imports every model.
(folder,) = find_spec("mmpretrain").submodule_search_locations
sys.modules["mmpretrain"] = ModuleType("mmpretrain")
sys.modules["mmpretrain"].__path__ = [folder]
RepeatAugSampler = run_path(f"{folder}/datasets/samplers/repeat_aug.py")["RepeatAugSampler"]

for world_size in (6, 7):
    # The sampler asks only for the rank and the number of ranks, so no other process is needed.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yielded = [*RepeatAugSampler(range(1), seed=0)]
    except AssertionError:
        yielded = "AssertionError"
    print(f"1 sample, {world_size} ranks: {yielded}, expected [0]")
    dist.destroy_process_group()
