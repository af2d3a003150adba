"""lightning's UnrepeatedDistributedSampler ignores its seed and drop_last."""

from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch.utils.data import DistributedSampler

for kind in (DistributedSampler, UnrepeatedDistributedSampler):
    for seed in (0, 1):
        sampler = kind(range(8), num_replicas=1, rank=0, shuffle=True, seed=seed)
        print(f"{kind.__name__}, seed {seed}: {list(sampler)}")
    shares = [
        list(kind(range(5), num_replicas=2, rank=rank, shuffle=False, drop_last=True))
        for rank in range(2)
    ]
    print(f"{kind.__name__}, drop_last: {shares}")
