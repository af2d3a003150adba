"""catalyst's DistributedSamplerWrapper raises if a rank's share is one sample."""

from catalyst.data.sampler import DistributedSamplerWrapper
from torch.utils.data import SequentialSampler

for samples in (3, 2):
    wrapper = DistributedSamplerWrapper(
        SequentialSampler(range(samples)), num_replicas=2, rank=0, shuffle=False
    )
    try:
        print(f"{samples} samples: {list(wrapper)}")
    except TypeError as error:
        print(f"{samples} samples: TypeError: {error}, expected [0]")
