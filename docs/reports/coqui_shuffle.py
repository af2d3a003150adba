"""The DistributedSamplerWrapper of Coqui's trainer takes shuffle and seed, and uses neither."""

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

SAMPLES = 12
options = {"num_replicas": 2, "rank": 0, "shuffle": True}
for seed, epoch in ((0, 0), (0, 1), (1, 0)):
    wrapper = DistributedSamplerWrapper(SequentialSampler(range(SAMPLES)), seed=seed, **options)
    sampler = DistributedSampler(range(SAMPLES), seed=seed, **options)
    for each in (wrapper, sampler):
        each.set_epoch(epoch)
    print(f"seed {seed}, epoch {epoch}: {[*wrapper]}, torch's sampler {[*sampler]}")
