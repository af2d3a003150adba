"""A compact DDP and a compact distributed sampler.

Each is small enough to be read in one go, and the suite certifies both.
"""
