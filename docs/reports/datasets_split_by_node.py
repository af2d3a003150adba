"""split_dataset_by_node raises on some ranks only if there are fewer samples than ranks."""

from datasets import Dataset
from datasets.distributed import split_dataset_by_node

dataset = Dataset.from_dict({"x": [7, 8]})
for rank in range(3):
    try:
        shard = split_dataset_by_node(dataset, rank=rank, world_size=3)["x"][:]
        print(f"rank {rank} of 3: {shard}")
    except IndexError as error:
        print(f"rank {rank} of 3: IndexError: {error} Expected [], as from an iterable dataset")
