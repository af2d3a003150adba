"""Implementations that can be neither accused nor certified."""

from copy import deepcopy

from torch import nn

from ddp_invariants.reference.ddp import DistributedDataParallel as Reference


class RaisesOnWrap(Reference):
    """A wrapper whose constructor raises on every rank.

    This is a refusal: neither a violation nor a pass.
    """

    def __init__(self, module: nn.Module) -> None:
        raise NotImplementedError("to be written")


class TrainsACopy(Reference):
    """A wrapper that trains a deep copy of the module.

    The copy cannot be seen, so no rule may judge it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(deepcopy(module))
