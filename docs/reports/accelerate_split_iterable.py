"""accelerate's IterableDatasetShard yields no sample if it splits batches of one sample."""

from accelerate.data_loader import IterableDatasetShard

for rank in range(2):
    shard = IterableDatasetShard(
        range(4), batch_size=1, num_processes=2, process_index=rank, split_batches=True
    )
    print(f"rank {rank}: len {len(shard)}, samples {list(shard)}, expected two samples or an error")
