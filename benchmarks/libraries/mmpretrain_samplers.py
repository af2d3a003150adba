"""The samplers of mmpretrain."""

from bare import load

SequentialSampler = load("mmpretrain.datasets.samplers.sequential").SequentialSampler
RepeatAugSampler = load("mmpretrain.datasets.samplers.repeat_aug").RepeatAugSampler
