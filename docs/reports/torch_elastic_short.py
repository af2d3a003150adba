"""ElasticDistributedSampler fails an assertion if the padding needs a sample twice."""

from torch.distributed.elastic.utils.data import ElasticDistributedSampler
from torch.utils.data import DistributedSampler

for replicas in (2, 3):
    wanted = list(DistributedSampler(range(1), replicas, 0))
    try:
        got = list(ElasticDistributedSampler(range(1), replicas, 0))
    except AssertionError:
        got = "AssertionError when iterated"
    print(f"1 sample, {replicas} replicas: {got}, DistributedSampler yields {wanted}")
