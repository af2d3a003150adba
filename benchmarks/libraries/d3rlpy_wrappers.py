"""d3rlpy's function that wraps the networks of an algorithm."""

from bare import load

wrap_model_by_ddp = load("d3rlpy.torch_utility").wrap_model_by_ddp
