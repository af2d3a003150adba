"""The distributed sampler of speechbrain, on a machine without CUDA, too."""

import sys
from types import ModuleType

# PyPI's torchaudio does not load without CUDA. The sampler does not need it.
sys.modules["torchaudio"] = ModuleType("torchaudio")

from speechbrain.dataio.sampler import (  # type: ignore[import-not-found] # noqa: E402, F401 - a row names it
    DistributedSamplerWrapper,
)
