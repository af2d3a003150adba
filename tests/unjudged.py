"""Implementations that can be neither accused nor certified."""

from copy import deepcopy

from torch import nn

from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class RaisesOnWrap(Reference):
    """The constructor raises on every rank: a refusal, which is no violation and no pass."""

    def __init__(self, module: nn.Module) -> None:
        raise NotImplementedError("to be written")


class TrainsACopy(Reference):
    """Trains a deep copy of the module: nothing of it can be seen, and nothing may be said of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(deepcopy(module))
