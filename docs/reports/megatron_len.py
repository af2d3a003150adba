"""The len of Megatron Bridge's MegatronPretrainingSampler is the dataset's, not its number of batches."""

from importlib.util import find_spec
from runpy import run_path

from torch.utils.data import DataLoader

# The file by itself, because the package around it imports every model.
(folder,) = find_spec("megatron").submodule_search_locations
MegatronPretrainingSampler = run_path(f"{folder}/bridge/data/samplers.py")[
    "MegatronPretrainingSampler"
]

sampler = MegatronPretrainingSampler(
    total_samples=12,
    consumed_samples=0,
    micro_batch_size=3,
    data_parallel_rank=0,
    data_parallel_size=2,
)
loader = DataLoader(range(12), batch_sampler=sampler)
print(
    f"len(loader) is {len(loader)}, and it yields {sum(1 for _ in loader)} batches, expected 2 and 2"
)
