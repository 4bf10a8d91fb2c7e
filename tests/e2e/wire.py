"""A blocking request over a plain socket: for tests and benchmarks that want nothing between them
and the bytes.
"""

from __future__ import annotations

import socket
import struct
from itertools import count

from kbroker.protocol.apis import response_class
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.framing import decode_response_header, encode_request_frame

_correlation_ids = count(1)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Read size bytes. Raises ConnectionError if the peer ends before."""
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError(
                f"the broker closed the connection after {len(data)} of {size} bytes"
            )
        data += piece
    return bytes(data)


def receive_frame(connection: socket.socket) -> bytes:
    """Read one frame; gives it without its length."""
    (size,) = struct.unpack(">i", receive_exactly(connection, 4))
    return receive_exactly(connection, size)


def frame_of(message: Message, version: int, client_id: str | None = "wire") -> bytes:
    """The request as it goes over the wire, length included."""
    return b"".join(
        bytes(part)
        for part in encode_request_frame(message, version, next(_correlation_ids), client_id)
    )


def call(
    connection: socket.socket, message: Message, version: int, client_id: str | None = "wire"
) -> Message:
    """Send a request and read its response."""
    connection.sendall(frame_of(message, version, client_id))
    frame = receive_frame(connection)
    _, position = decode_response_header(frame, message.API_KEY, version)
    response, end = decode(response_class(message.API_KEY), frame, version, position)
    assert end == len(frame), "bytes behind the response"
    return response
