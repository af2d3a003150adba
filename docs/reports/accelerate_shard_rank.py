"""accelerate's BatchSamplerShard accepts ranks that do not exist, and yields None."""

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, SequentialSampler

batches = BatchSampler(SequentialSampler(range(3)), batch_size=1, drop_last=False)
for process_index in (0, 1, -1, 5):
    try:
        shard = list(BatchSamplerShard(batches, num_processes=2, process_index=process_index))
    except ValueError as error:
        shard = error
    expected = "its share" if process_index in (0, 1) else "a ValueError"
    print(f"rank {process_index} of 2: {shard}, expected {expected}")
