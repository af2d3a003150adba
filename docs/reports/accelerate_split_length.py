"""The len of accelerate's IterableDatasetShard is too large if it splits batches."""

from accelerate.data_loader import IterableDatasetShard

for samples in (8, 12):
    shard = IterableDatasetShard(
        range(samples), batch_size=4, num_processes=2, process_index=0, split_batches=True
    )
    print(f"{samples} samples: len {len(shard)}, yields {len(list(shard))}")
