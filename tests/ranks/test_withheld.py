"""Collectives whose results are withheld, called in each form that torch offers."""

import datetime as dt

import pytest
import torch
from torch import Tensor, distributed

from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.observed import Connections, ObservedGroup, Timing
from ddp_invariants.ranks.groups.works import Log
from ddp_invariants.records.trace import LastWords


@pytest.mark.parametrize("listed", [True, False])
def test_a_tensor_that_stands_alone_is_withheld_and_reduced_as_a_whole(listed: bool) -> None:
    """Both calls send one tensor of two elements; a tensor is no list of its elements."""
    words = LastWords.alone()
    store = distributed.HashStore()  # type: ignore[attr-defined]  # torch exports it without saying so
    connections = Connections(store, 0, 1, dt.timedelta(seconds=20), RankDevice())
    group = ObservedGroup(connections, Log(words, 0), Timing(withhold=True))
    tensor: Tensor = torch.ones(2)
    work = group.allreduce([tensor] if listed else tensor)
    assert group.calls[0][:3] == ["allreduce", "float32", 2]
    assert tensor.tolist() == [SENTINEL] * 2
    work.wait()
    assert tensor.tolist() == [1.0, 1.0]
    # The sender may read its own tensor meanwhile.
    sent = group.broadcast(tensor, 0)
    assert tensor.tolist() == [1.0, 1.0]
    sent.wait()
    words.close()
