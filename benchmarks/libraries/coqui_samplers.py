"""The sampler of the trainer of Coqui TTS."""

from bare import load

DistributedSamplerWrapper = load("trainer.torch").DistributedSamplerWrapper
