"""DistributedSampler blames the rank for a wrong number of replicas."""

from torch.utils.data import DistributedSampler

for num_replicas in (0, -1):
    try:
        DistributedSampler(range(4), num_replicas=num_replicas, rank=0)
        print(f"{num_replicas=}: accepted, expected an error")
    except ValueError as error:
        print(f"{num_replicas=}: {error}")
