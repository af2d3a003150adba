"""The sampler of the trainer of Coqui TTS."""

from typing import Any

from bare import load


def sampler(sampler: Any, num_replicas: int, rank: int, *, seed: int) -> Any:
    """Return the wrapper of a sampler."""
    library = load("trainer.torch")
    return library.DistributedSamplerWrapper(
        sampler, num_replicas=num_replicas, rank=rank, seed=seed
    )
