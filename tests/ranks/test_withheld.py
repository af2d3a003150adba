"""Collectives whose results are withheld, called in each form that torch offers."""

from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
from alone import alone
from torch import Tensor

from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.works import WithheldWork
from ddp_invariants.records.trace import WAITED


class WithQueues(RankDevice):
    """A CPU that claims to queue its work, and notes whose memory it keeps."""

    kept: ClassVar[list[Tensor]] = []

    @property
    def on_device(self) -> bool:
        """Return True."""
        return True

    def moment(self) -> None:
        """Return None: the work is done at once."""

    def keep(self, tensor: Tensor) -> None:
        """Note the tensor."""
        self.kept.append(tensor)


@pytest.mark.parametrize("rank_device", [RankDevice(), WithQueues()])
def test_a_stream_that_waits_gets_the_result(rank_device: RankDevice) -> None:
    """A caller may let its stream wait instead of itself; without streams, torch refuses that."""
    with alone() as rank:
        group = rank.group()
        given, result = torch.zeros(2), torch.ones(2)
        begun = group.allreduce([result])
        work = WithheldWork(begun, [given], [result], [], SENTINEL, rank_device)
        assert given.tolist() == [SENTINEL] * 2
        with (
            nullcontext()
            if rank_device.on_device
            else pytest.raises(RuntimeError, match="Failed to create StreamBlock")
        ):
            work.block_current_stream()
        assert group.calls[0][WAITED] is not None
        assert work.done == rank_device.on_device
        if work.done:
            assert given.tolist() == [1.0, 1.0]
            assert WithQueues.kept == [result]


@pytest.mark.parametrize("listed", [True, False])
def test_a_tensor_that_stands_alone_is_withheld_and_reduced_as_a_whole(listed: bool) -> None:
    """Both calls send one tensor of two elements; a tensor is no list of its elements."""
    with alone() as rank:
        group = rank.group(withhold=True)
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
