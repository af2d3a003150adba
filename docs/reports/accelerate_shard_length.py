"""The len of accelerate's BatchSamplerShard is not the number of batches if they are uneven."""

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, SequentialSampler

batches = BatchSampler(SequentialSampler(range(3)), batch_size=2, drop_last=False)
for rank in range(2):
    shard = BatchSamplerShard(batches, 2, rank, split_batches=True, even_batches=False)
    print(f"rank {rank}: len {len(shard)}, batches {list(shard)}")
