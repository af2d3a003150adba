"""Two samplers of transformers accept ranks that do not exist."""

from transformers.trainer_pt_utils import BatchRebalanceSampler, DistributedLengthGroupedSampler

for rank in (-1, 2):
    grouped = DistributedLengthGroupedSampler(2, num_replicas=2, rank=rank, lengths=[3, 1, 4, 1])
    balanced = BatchRebalanceSampler([3, 1, 4, 1], 4, dp_size=2, grad_accum=1, rank=rank)
    for sampler in (grouped, balanced):
        try:
            got = f"{list(sampler)}, expected an error when made"
        except (AssertionError, IndexError) as error:
            got = f"{type(error).__name__} when iterated, expected it when made"
        print(f"{type(sampler).__name__}, rank {rank} of 2: {got}")
