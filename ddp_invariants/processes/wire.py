"""Frames between controller, host and rank: a JSON header and raw bytes behind it.

JSON and raw bits rather than pickle, and nothing received is ever executed. The other side may run
another Python, another numpy, or an implementation that lies.
"""

import json
import socket
import struct
from typing import Any

from ddp_invariants.errors import WireError

_PREFIX = struct.Struct("<II")
LARGEST_FRAME = 1 << 28
"""Bytes, four times the most a rank may record (`ranks.training.recorder.MOST_EVIDENCE`).

A rank that sends more is broken or hostile. Reading on would take the controller's memory.
"""
_PIECE = 1 << 20
_SMALL = 1 << 16
"""Bytes of a frame that is sent at once. A larger one is not copied for that."""


def send(
    connection: socket.socket, header: dict[str, Any], *blobs: bytes | bytearray | memoryview
) -> None:
    """Send one frame; block until the peer's socket buffer has taken it.

    Args:
        connection: The connection.
        header: The plain part.
        blobs: The raw bytes, in parts that the peer gets as one.

    Raises:
        OSError: The peer is gone.
    """
    text = json.dumps(header, default=vars).encode()
    size = sum(map(len, blobs))
    parts = [_PREFIX.pack(len(text), size) + text, *blobs]
    for part in [b"".join(parts)] if size < _SMALL else parts:
        connection.sendall(part)


class Incoming:
    """A frame that arrives piece by piece, so that one peer cannot delay the others.

    Args:
        largest: Bytes a frame may have.
    """

    def __init__(self, largest: int = LARGEST_FRAME) -> None:
        self._bytes, self._taken, self._largest = bytearray(_SMALL), 0, largest

    def take(self, connection: socket.socket) -> tuple[dict[str, Any], memoryview] | None:
        """Read the bytes at hand without waiting, and return the frame once it is complete.

        Return None before.

        Raises:
            WireError: The connection closed, or the bytes are no frame.
            OSError: The connection was reset.
        """
        room = memoryview(self._bytes)[self._taken :][:_PIECE]
        try:
            count = connection.recv_into(room, flags=socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not count:
            raise WireError("the connection closed")
        self._taken += count
        if self._taken < _PREFIX.size:
            return None
        sizes = _sizes(self._bytes, self._largest)
        end = _PREFIX.size + sum(sizes)
        if self._taken < end:
            if len(self._bytes) <= end:
                # One byte more than the frame, so that bytes after it show.
                larger = bytearray(end + 1)
                larger[: self._taken] = memoryview(self._bytes)[: self._taken]
                self._bytes = larger
            return None
        if self._taken > end:
            raise WireError("unexpected bytes after the frame")
        return _frame(memoryview(self._bytes).toreadonly()[_PREFIX.size : end], sizes[0])


def receive(connection: socket.socket) -> tuple[dict[str, Any], memoryview] | None:
    """Receive one frame; None if the peer closed the connection between frames.

    Raises:
        WireError: The connection broke inside a frame, or the frame is invalid.
        OSError: The connection was reset, or timed out if it has a timeout.
    """
    prefix = _exactly(connection, _PREFIX.size)
    if not prefix:
        return None
    sizes = _sizes(prefix)
    body = _exactly(connection, sum(sizes))
    if len(body) < sum(sizes):
        raise WireError("the connection closed inside a frame")
    return _frame(memoryview(body), sizes[0])


def _sizes(prefix: bytes | bytearray, largest: int = LARGEST_FRAME) -> tuple[int, int]:
    """Return the sizes in bytes of a frame's header and of its raw bytes."""
    text_size, blob_size = _PREFIX.unpack_from(prefix)
    if text_size + blob_size > largest:
        raise WireError(f"a frame of {text_size + blob_size} bytes, at most {largest} are allowed")
    return text_size, blob_size


def _frame(body: memoryview, text_size: int) -> tuple[dict[str, Any], memoryview]:
    try:
        header = json.loads(bytes(body[:text_size]))
    except (ValueError, RecursionError) as error:
        raise WireError(f"a frame's header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise WireError("a frame's header is not an object")
    return header, body[text_size:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or b"" if the peer closed before the first of them."""
    first = connection.recv(size)
    if len(first) == size or not first:
        return first
    parts = bytearray(first)
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise WireError("the connection closed inside a frame")
        parts += part
    return bytes(parts)
