"""The kinds of layers, each in a model of its own."""

import gc
import weakref
from typing import get_args

import numpy as np
import pytest
import torch

from ddp_invariants.cases.layers import Layer, LayerKind, Model
from ddp_invariants.ranks.training.layer import Watched
from ddp_invariants.ranks.training.model import Replica


@pytest.mark.parametrize("kind", get_args(LayerKind))
def test_a_model_ends_when_it_is_dropped(kind: LayerKind) -> None:
    """Nobody else keeps it: groups that a wrapper made end with what its hooks hold."""
    layers = (Layer("linear", 4), Layer(kind))
    model = Model(4, layers[::-1] if kind == "embedding" else layers)
    replica = Replica(model, np.ones(model.numbers))
    for module in replica.modules():
        if isinstance(module, Watched):
            module.at_forward = replica.zero_grad  # As an observer hangs on to every layer.
    assert torch.isfinite(replica(torch.ones(2, 4))).all()
    left = weakref.ref(replica)
    del replica, module
    gc.collect()
    assert left() is None
