"""The batch sampler of FunASR."""

from bare import load

samplers = load("funasr.datasets.audio_datasets.samplers")

CustomDistributedBatchSampler = samplers.CustomDistributedBatchSampler
