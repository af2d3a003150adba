"""Adapters for libraries that want their own optimizer, backward or state: `--ddp accelerate`.

Each imports its library when a rank wraps a model. `benchmarks/third_parties.py` judges them
with the installed libraries.
"""
