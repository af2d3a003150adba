"""The batch samplers of Megatron Bridge that need no adapter."""

from bare import load

samplers = load("megatron.bridge.data.samplers")

MegatronPretrainingSampler = samplers.MegatronPretrainingSampler
MegatronPretrainingBatchSampler = samplers.MegatronPretrainingBatchSampler
