"""MONAI's DistributedSampler fails an assertion with even_divisible=False and drop_last=True."""

from monai.data import DistributedSampler

for samples in (4, 5):
    for rank in range(2):
        sampler = DistributedSampler(
            range(samples),
            even_divisible=False,
            num_replicas=2,
            rank=rank,
            shuffle=False,
            drop_last=True,
        )
        try:
            got = list(sampler)
        except AssertionError as error:
            got = f"AssertionError: {error}"
        print(f"{samples} samples, rank {rank} of 2: len {len(sampler)}, {got}")
