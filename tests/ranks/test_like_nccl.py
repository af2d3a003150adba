"""Observed groups over a backend that answers as NCCL does, which needs no device.

NCCL returns no work for a call that is not asynchronous, refuses a view with gaps, and takes several
messages as one.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ddp_invariants.cases.program import SENTINEL
from ddp_invariants.ranks.groups import distributed
from ddp_invariants.ranks.groups.device import RankDevice
from ddp_invariants.ranks.groups.observed import Connections, ObservedGroup, Timing
from ddp_invariants.ranks.groups.works import Log
from ddp_invariants.records.trace import WAITED, LastWords


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


class Scene:
    """An observed group over `LikeNccl`.

    Args:
        connections: Of one rank, over gloo.
    """

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.words = LastWords.alone()

    def group(self, *, withhold: bool) -> ObservedGroup:
        """Return a new group."""
        group = ObservedGroup(self.connections, Log(self.words, 0), Timing(withhold=withhold))
        group._inner = LikeNccl(group._inner)
        return group


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Return connections of one rank."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without saying so
    made = Scene(Connections(store, 0, 1, dt.timedelta(seconds=20), RankDevice()))
    yield made
    made.words.close()


def options(*, asynchronous: bool) -> Any:
    """Return the options of an all-reduce."""
    made = dist.AllreduceOptions()
    made.asyncOp = asynchronous
    return made


@pytest.mark.parametrize("withhold", [False, True])
def test_a_call_without_a_work_has_its_result_at_once(scene: Scene, withhold: bool) -> None:
    """It counts as waited for, since the caller's stream waits."""
    group, tensor = scene.group(withhold=withhold), torch.ones(2)
    assert group.allreduce([tensor], options(asynchronous=False)) is None
    assert tensor.tolist() == [1.0, 1.0]
    assert group.calls[0][WAITED] is not None
    assert group.in_flight() == []


def test_a_call_with_a_work_is_withheld(scene: Scene) -> None:
    """Its result comes when somebody waits."""
    group, tensor = scene.group(withhold=True), torch.ones(2)
    work = group.allreduce([tensor], options(asynchronous=True))
    assert tensor.tolist() == [SENTINEL] * 2
    assert group.calls[0][WAITED] is None
    work.wait()
    assert tensor.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("withhold", [False, True])
def test_a_view_with_gaps_is_refused_under_each_timing(scene: Scene, withhold: bool) -> None:
    """A copy, which has no gaps, is not sent in its place."""
    view = torch.ones(4, device="meta")[::2]
    with pytest.raises(ValueError, match="must be contiguous"):
        scene.group(withhold=withhold).allreduce([view], options(asynchronous=True))


def test_gloo_sends_no_message_from_a_device(scene: Scene) -> None:
    """It would take an address of the device for one of the processor's."""
    with pytest.raises(RuntimeError, match="of a CPU only: send got a tensor on meta"):
        scene.group(withhold=False).send([torch.ones(1, device="meta")], 1, 0)


@pytest.mark.parametrize("withhold", [False, True])
def test_messages_of_one_call_are_sent_as_one(
    scene: Scene, withhold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their results come at once, as nothing says which of them a caller waits for."""
    scene.connections.world_size = 2
    monkeypatch.setattr(Connections, "carries", lambda *_: None)
    group = scene.group(withhold=withhold)
    scene.connections.carrier = "nccl"
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
