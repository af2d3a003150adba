"""lightning's UnrepeatedDistributedSampler raises on some ranks only, for a dataset shorter than the world."""

from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler

for rank in (0, 1):
    try:
        sampler = UnrepeatedDistributedSampler(range(1), num_replicas=2, rank=rank, shuffle=False)
        print(f"rank {rank}: {list(sampler)}")
    except AssertionError:
        print(f"rank {rank}: AssertionError, expected no index")
