"""ultralytics' ContiguousDistributedSampler accepts ranks that do not exist."""

import os

os.environ["YOLO_VERBOSE"] = "False"  # Otherwise it prints advice when imported.

from ultralytics.data.build import ContiguousDistributedSampler

for rank in (0, 1, -1, 2):
    sampler = ContiguousDistributedSampler(range(8), num_replicas=2, batch_size=2, rank=rank)
    expected = "its share" if rank in (0, 1) else "an error when made"
    print(f"rank {rank} of 2: {list(sampler)}, expected {expected}")
