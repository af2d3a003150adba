"""transformers' ShardSampler and IterableDatasetShard accept ranks that do not exist."""

from transformers.trainer_pt_utils import IterableDatasetShard, ShardSampler

for kind in (ShardSampler, IterableDatasetShard):
    for rank in (-1, 2):
        shard = kind(range(8), batch_size=2, num_processes=2, process_index=rank)
        try:
            print(f"{kind.__name__}, rank {rank} of 2: {list(shard)}, expected an error when made")
        except IndexError as error:
            print(f"{kind.__name__}, rank {rank} of 2: IndexError when iterated: {error}")
