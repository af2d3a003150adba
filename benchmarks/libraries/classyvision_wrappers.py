"""Classy Vision's function that wraps a model, and the function that chooses the CPU."""

from bare import load

distributed = load("classy_vision.generic.distributed_util")

init_distributed_data_parallel_model = distributed.init_distributed_data_parallel_model
set_cpu_device = distributed.set_cpu_device
