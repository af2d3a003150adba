"""The samplers of Determined."""

from bare import load

samplers = load("determined.pytorch.samplers")

DistributedSampler = samplers.DistributedSampler
DistributedBatchSampler = samplers.DistributedBatchSampler
