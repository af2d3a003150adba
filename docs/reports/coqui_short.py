"""The DistributedSamplerWrapper of Coqui's trainer raises if more than N samples are needed as padding."""

from importlib.util import find_spec
from runpy import run_path

from torch.utils.data import DistributedSampler, SequentialSampler

# The file by itself, because the package around it imports the whole trainer.
(folder,) = find_spec("trainer").submodule_search_locations
DistributedSamplerWrapper = run_path(f"{folder}/torch.py")["DistributedSamplerWrapper"]

for rank in (0, 1, 2):
    expected = [*DistributedSampler(range(1), num_replicas=3, rank=rank)]
    try:
        wrapper = DistributedSamplerWrapper(SequentialSampler(range(1)), num_replicas=3, rank=rank)
        yielded = [*wrapper]
    except AssertionError as error:
        yielded = f"AssertionError: {error}"
    print(f"rank {rank} of 3: {yielded}, expected {expected}")
