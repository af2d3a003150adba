"""Rank processes: the only part that starts any.

    controller (no torch)      host (torch, forks)       rank (torch, implementation under test)
    hosts.py, pool.py   ---->  host.py            ---->    rank.py: training.py, sharding.py
            ^                                                |
            '------------- evidence over a socket -----------'

The two sides share `wire.py` and the case. Modules to the right import torch, numpy and the
standard library only. Modules to the left never import torch.
"""
