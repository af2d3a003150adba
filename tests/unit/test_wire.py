"""Frames are received whole, however their bytes arrive, and nonsense is rejected."""

import socket
from collections.abc import Iterator

import pytest

from ddp_invariants.errors import WireError
from ddp_invariants.processes import wire

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Yield two connected sockets."""
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def taken(connection: socket.socket) -> object:
    """Take from a connection until a frame is complete; return None after 1,000 tries."""
    incoming = wire.Incoming()
    for _ in range(1000):
        frame = incoming.take(connection)
        if frame is not None:
            return frame
    return None


def test_a_frame_arrives_as_it_was_sent(ends: Ends) -> None:
    """Header and bits arrive unchanged by both ways of receiving."""
    for receive in (taken, wire.receive):
        wire.send(ends[0], {"to": 1}, b"bits")
        assert receive(ends[1]) == ({"to": 1}, b"bits")


def test_half_a_frame_keeps_nobody_waiting(ends: Ends) -> None:
    """Taking returns None at once until the last byte of the frame has arrived."""
    incoming = wire.Incoming()
    wire.send(ends[0], {"to": 1}, b"bits")
    whole = ends[1].recv(100)
    for byte in whole[:-1]:
        ends[0].send(bytes([byte]))
        assert incoming.take(ends[1]) is None
    assert incoming.take(ends[1]) is None
    ends[0].send(whole[-1:])
    taken = incoming.take(ends[1])
    assert taken is not None
    assert (taken[0], bytes(taken[1])) == ({"to": 1}, b"bits")


NONSENSE = [
    (b"\xff" * 16, "at most 268435456 are allowed"),
    (b"\x02\0\0\0\0\0\0\0[]", "not an object"),
    (b"\x02\0\0\0\0\0\0\0{x", "not JSON"),
    (b"\x02\0\0\0\0\0\0\0{}more", "after the frame"),
    (b"\x02\0\0\0\x01\0\0\0{}", "closed"),
]


@pytest.mark.parametrize(("sent", "message"), NONSENSE, ids=[message for _, message in NONSENSE])
def test_nonsense_is_told_as_such(ends: Ends, sent: bytes, message: str) -> None:
    """Nonsense raises WireError, the one exception that means a broken peer."""
    ends[0].sendall(sent)
    ends[0].close()
    with pytest.raises(WireError, match=message):
        taken(ends[1])
