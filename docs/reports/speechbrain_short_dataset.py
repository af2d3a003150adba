"""speechbrain's DistributedSamplerWrapper raises if a rank's share is one sample, or none."""

import sys
from types import ModuleType

# PyPI's torchaudio does not load without CUDA. The samplers do not need it.
sys.modules["torchaudio"] = ModuleType("torchaudio")

from speechbrain.dataio.sampler import DistributedSamplerWrapper  # noqa: E402 - see above
from torch.utils.data import SequentialSampler  # noqa: E402 - the same

for samples, expected in ((3, [0, 2]), (2, [0]), (0, [])):
    wrapper = DistributedSamplerWrapper(
        SequentialSampler(range(samples)), num_replicas=2, rank=0, shuffle=False
    )
    try:
        got = list(wrapper)
    except TypeError as error:
        got = f"TypeError: {error}"
    print(f"{samples} samples: {got}, expected {expected}")
