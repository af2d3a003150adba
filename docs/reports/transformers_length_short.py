"""transformers' DistributedLengthGroupedSampler raises on a short or an empty dataset."""

from torch.utils.data import DistributedSampler
from transformers.trainer_pt_utils import DistributedLengthGroupedSampler

for samples in (0, 1, 2):
    wanted = len(list(DistributedSampler(range(samples), 3, 0)))
    sampler = DistributedLengthGroupedSampler(2, num_replicas=3, rank=0, lengths=[5] * samples)
    try:
        got = f"{len(list(sampler))} indices"
    except (AssertionError, IndexError) as error:
        got = f"{type(error).__name__} when iterated"
    print(f"{samples} samples, 3 replicas: {got}, torch's DistributedSampler yields {wanted}")
