"""The len of transformers' DistributedSamplerWithLoop is not the number of indices."""

from transformers.trainer_pt_utils import DistributedSamplerWithLoop

for samples, replicas, batch_size in ((1, 1, 3), (5, 2, 2)):
    for rank in range(replicas):
        sampler = DistributedSamplerWithLoop(
            range(samples), batch_size, num_replicas=replicas, rank=rank, shuffle=False
        )
        print(f"{samples} samples, rank {rank}: len {len(sampler)}, indices {list(sampler)}")
