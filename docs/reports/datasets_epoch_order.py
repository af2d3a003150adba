"""IterableDataset.set_epoch shuffles the shards of a dataset that nobody has shuffled."""

from datasets import Dataset

stream = Dataset.from_dict({"index": [0, 1, 2, 3]}).to_iterable_dataset(num_shards=4)
for epoch in range(3):
    stream.set_epoch(epoch)
    print(f"epoch {epoch}: {[row['index'] for row in stream]}, expected [0, 1, 2, 3]")
