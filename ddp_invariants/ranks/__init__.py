"""Ranks: the processes that train with the implementation under test and record the evidence.

    controller (no torch)      host (torch, forks)       rank (torch, implementation under test)
    processes/pool.py   ---->  host.py            ---->    rank.py: training/, shards.py
            ^                                                |
            '------------- evidence over a socket -----------'

`processes/wire.py` frames the messages between the two sides. Modules on the right import torch,
numpy and the standard library only. Modules on the left never import torch.
"""
