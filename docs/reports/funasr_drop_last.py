"""FunASR's CustomDistributedBatchSampler raises with drop_last=True if there is anything to drop."""

import sys
from importlib.util import find_spec
from runpy import run_path
from types import ModuleType

# The package stays empty, because its __init__ imports every model.
(folder,) = find_spec("funasr").submodule_search_locations
sys.modules["funasr"] = ModuleType("funasr")
sys.modules["funasr"].__path__ = [folder]
samplers = run_path(f"{folder}/datasets/audio_datasets/samplers.py")

for samples, expected in ((4, 2), (5, 2), (1, 0), (0, 0)):
    # Without torch.distributed the sampler takes rank 0 of 1.
    sampler = samplers["CustomDistributedBatchSampler"](range(samples), 2, drop_last=True)
    try:
        yielded = f"{len([*sampler])} batches"
    except (AssertionError, IndexError) as error:
        yielded = type(error).__name__
    print(f"{samples} samples in batches of 2: {yielded}, expected {expected} batches")
