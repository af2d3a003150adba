"""The samplers of FastReID, which are those of Detectron2."""

from bare import load

samplers = load("fastreid.data.samplers.data_sampler")

TrainingSampler = samplers.TrainingSampler
InferenceSampler = samplers.InferenceSampler
