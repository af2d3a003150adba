"""Adapters for libraries that want their own optimizer, backward or state: `--ddp accelerate`.

Each imports its library when a rank wraps a model. `benchmarks/adapters.py` tests them against the
installed libraries.
"""
