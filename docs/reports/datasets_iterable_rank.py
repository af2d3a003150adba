"""split_dataset_by_node accepts rank -1 for an iterable dataset."""

from datasets import Dataset
from datasets.distributed import split_dataset_by_node

table = Dataset.from_dict({"x": [5, 6, 7, 8]})
for kind, dataset in (("map style", table), ("iterable", table.to_iterable_dataset(2))):
    for rank in (0, 1, -1):
        try:
            got = [item["x"] for item in split_dataset_by_node(dataset, rank, world_size=2)]
        except ValueError:
            got = "ValueError"
        expected = "its share" if rank >= 0 else "a ValueError"
        print(f"{kind}, rank {rank} of 2: {got}, expected {expected}")
