"""Frames between controller, host and rank: a JSON header and raw bytes behind it.

JSON and raw bits rather than pickle: the other side may run another Python, another
numpy, or an implementation that lies, and nothing received is ever executed.
"""

import json
import socket
import struct
from typing import Any

_PREFIX = struct.Struct("<II")
LARGEST_FRAME = 1 << 30
"""Bytes. A rank that sends more is broken or hostile; reading on would take the controller's memory."""


class WireError(RuntimeError):
    """The peer closed the connection inside a frame, or sent something that is no frame."""


def send(connection: socket.socket, header: dict[str, Any], blob: bytes | bytearray = b"") -> None:
    """Send one frame; blocks until the peer's socket buffer has taken it.

    Raises:
        OSError: The peer is gone.
    """
    text = json.dumps(header, default=vars).encode()
    connection.sendall(_PREFIX.pack(len(text), len(blob)) + text + blob)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """Receive one frame; None when the peer closed the connection between frames.

    Raises:
        WireError: The connection broke inside a frame, or the frame makes no sense.
        OSError: The connection was reset, or timed out where it has a timeout.
    """
    prefix = _exactly(connection, _PREFIX.size)
    if not prefix:
        return None
    text_size, blob_size = _PREFIX.unpack(prefix)
    if text_size + blob_size > LARGEST_FRAME:
        raise WireError(f"a frame of {text_size + blob_size} bytes, at most {LARGEST_FRAME} are taken")
    body = _exactly(connection, text_size + blob_size)
    if len(body) < text_size + blob_size:
        raise WireError("the connection closed inside a frame")
    try:
        header = json.loads(body[:text_size])
    except ValueError as error:
        raise WireError(f"a frame's header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise WireError("a frame's header is not an object")
    return header, body[text_size:]


def _exactly(connection: socket.socket, size: int) -> bytes:
    """`size` bytes, or b"" when the peer closed before the first of them."""
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
