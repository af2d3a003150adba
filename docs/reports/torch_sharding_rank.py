"""apply_sharding accepts an instance below 0, whose pipe then yields nothing."""

from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.graph_settings import apply_sharding

for instance in (0, -1, 2):
    try:
        pipe = apply_sharding(IterableWrapper(range(4)).sharding_filter(), 2, instance)
        got = list(pipe)
    except ValueError:
        got = "ValueError"
    expected = "its share" if instance == 0 else "a ValueError"
    print(f"instance {instance} of 2: {got}, expected {expected}")
