"""Observed groups over a backend that answers as NCCL does, which needs no device.

NCCL returns no work for a call that is not asynchronous, refuses a view with gaps, and takes several
messages as one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from alone import Alone, alone
from torch import Tensor

from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.ranks.groups import distributed
from ddp_invariants.ranks.groups.observed import Connections, ObservedGroup
from ddp_invariants.records.trace import WAITED


class Done(dist.Work):
    """The work of all messages of one call, which is done."""

    def is_completed(self) -> bool:
        """Return True."""
        return True


class LikeNccl:
    """The part of a group of one rank that sends, over gloo."""

    def __init__(self, gloo: Any) -> None:
        self.gloo = gloo
        self.said = list[str]()
        self.started = False
        self.done = Done()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gloo, name)

    def allreduce(self, tensors: Sequence[Tensor], options: Any) -> Any:
        """Reduce a tensor; return a work if the call is asynchronous."""
        if not tensors[0].is_contiguous():
            raise ValueError("Tensors must be contiguous")
        work = self.gloo.allreduce(tensors, options)
        if options.asyncOp:
            return work
        work.wait()
        return None

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int) -> None:
        """Take a message to a rank; its work is that of all messages."""
        del tag
        assert self.started, "two ranks that both send first would wait for each other"
        self.said.append(f"{len(tensors)} to {rank}")

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int) -> None:
        """Take a message from a rank."""
        del tag
        assert self.started
        self.said.append(f"{tensors[0].tolist()} from {rank}")

    def _start_coalescing(self, device: torch.device) -> None:
        self.started = True
        self.said.append(f"start on {device}")

    def _end_coalescing(self, device: torch.device) -> Any:
        del device
        self.started = False
        return self.done


@pytest.fixture
def rank() -> Iterator[Alone]:
    """Yield the connections of one rank."""
    with alone() as made:
        yield made


def like_nccl(rank: Alone, *, withhold: bool) -> ObservedGroup:
    """Return a new group over `LikeNccl`."""
    group = rank.group(withhold=withhold)
    group._inner = LikeNccl(group._inner)
    return group


def options(*, asynchronous: bool) -> Any:
    """Return the options of an all-reduce."""
    made = dist.AllreduceOptions()
    made.asyncOp = asynchronous
    return made


@pytest.mark.parametrize("withhold", [False, True])
def test_a_call_without_a_work_has_its_result_at_once(rank: Alone, withhold: bool) -> None:
    """It counts as waited for, since the caller's stream waits."""
    group, tensor = like_nccl(rank, withhold=withhold), torch.ones(2)
    assert group.allreduce([tensor], options(asynchronous=False)) is None
    assert tensor.tolist() == [1.0, 1.0]
    assert group.calls[0][WAITED] is not None
    assert group.in_flight() == []


def test_a_call_with_a_work_is_withheld(rank: Alone) -> None:
    """Its result comes when somebody waits."""
    group, tensor = like_nccl(rank, withhold=True), torch.ones(2)
    work = group.allreduce([tensor], options(asynchronous=True))
    assert tensor.tolist() == [SENTINEL] * 2
    assert group.calls[0][WAITED] is None
    work.wait()
    assert tensor.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("withhold", [False, True])
def test_a_view_with_gaps_is_refused_under_each_timing(rank: Alone, withhold: bool) -> None:
    """A copy, which has no gaps, is not sent in its place."""
    view = torch.ones(4, device="meta")[::2]
    with pytest.raises(ValueError, match="must be contiguous"):
        like_nccl(rank, withhold=withhold).allreduce([view], options(asynchronous=True))


def test_gloo_sends_no_message_from_a_device(rank: Alone) -> None:
    """It would take an address of the device for one of the processor's."""
    with pytest.raises(RuntimeError, match="of a CPU only: send got a tensor on meta"):
        like_nccl(rank, withhold=False).send([torch.ones(1, device="meta")], 1, 0)


@pytest.mark.parametrize("withhold", [False, True])
def test_messages_of_one_call_are_sent_as_one(
    rank: Alone, withhold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their results come at once, as nothing says which of them a caller waits for."""
    rank.connections.world_size = 2
    monkeypatch.setattr(Connections, "carries", lambda *_: None)
    group = like_nccl(rank, withhold=withhold)
    rank.connections.carrier = "nccl"
    monkeypatch.setattr(distributed, "_pending", [group])
    dist.init_process_group(
        "observed",
        store=dist.HashStore(),  # type: ignore[attr-defined]  # torch exports it without saying so
        rank=0,
        world_size=2,
    )
    try:
        received = torch.zeros(1)
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, torch.ones(1), 1), dist.P2POp(dist.irecv, received, 1)]
        )
    finally:
        dist.destroy_process_group()
    assert group._inner.said == ["start on cpu", "1 to 1", "[0.0] from 1"]
    assert [call[0] for call in group.calls] == ["send", "recv"]
    assert works == [group._inner.done]
    assert group.finished(1.0)
