"""The DistributedSamplerWrapper of Coqui's trainer raises if more than N samples are needed as padding."""

import sys
from importlib.util import find_spec
from runpy import run_path
from types import ModuleType

from torch.utils.data import DistributedSampler, SequentialSampler

# The package stays empty, because its __init__ imports the whole trainer.
(folder,) = find_spec("trainer").submodule_search_locations
sys.modules["trainer"] = ModuleType("trainer")
sys.modules["trainer"].__path__ = [folder]
DistributedSamplerWrapper = run_path(f"{folder}/torch.py")["DistributedSamplerWrapper"]

for rank in (0, 1, 2):
    expected = [*DistributedSampler(range(1), num_replicas=3, rank=rank)]
    try:
        wrapper = DistributedSamplerWrapper(SequentialSampler(range(1)), num_replicas=3, rank=rank)
        yielded = [*wrapper]
    except AssertionError as error:
        yielded = f"AssertionError: {error}"
    print(f"rank {rank} of 3: {yielded}, expected {expected}")
