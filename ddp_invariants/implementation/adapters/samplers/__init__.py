"""Adapters for samplers of libraries that need other arguments: `--sampler accelerate_seedable`.

Each is a function or a class that takes what a user would give to the library. A rank imports the
library when it loads the adapter. `benchmarks/third_parties.py` judges them with the installed
libraries.
"""
