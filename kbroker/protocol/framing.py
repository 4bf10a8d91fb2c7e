"""Encodes and decodes headers and length prefixes of whole frames.

A frame is an int32 length and that many bytes: a header, then a message.
`server/network/connection` collects bytes into frames and limits their length. The two headers are
also declared in `messages.header`; they are hand-written here since every request uses them.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import error as StructError
from typing import Final, NamedTuple

from kbroker.protocol.apis import APIS, request_header_version, response_header_version
from kbroker.protocol.codecs.codec import Part, encode_onto, part_size
from kbroker.protocol.codecs.primitives import (
    Buffer,
    read_unsigned_varint,
    skip_tagged_fields,
)
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import BufferUnderflow, MalformedRequest

REQUEST_HEAD: Final = Layout(">hhih")
"""API key, API version, correlation id, length of the client id (-1 for null)."""

LENGTH: Final = Layout(">i")
_LENGTH_AND_ID: Final = Layout(">ii")


class RequestHeader(NamedTuple):
    """The header of a request; body_position is where the body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Read the header of a frame, given without its length prefix.

    The version is only checked not to be negative. Raises MalformedRequest for an API key without
    versions, and for bytes that are not a header.
    """
    try:
        api_key, api_version, correlation_id, size = REQUEST_HEAD.unpack_from(frame)
    except StructError:
        raise BufferUnderflow(f"a request of {len(frame)} bytes has no header") from None
    info = APIS.get(api_key)
    if info is None:
        raise MalformedRequest(f"no API has key {api_key}")
    if api_version < 0:
        raise MalformedRequest(f"{info.name} has no version {api_version}")
    client_id, position = read_client_id(frame, size, flexible=api_version >= info.flexible_from)
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def read_client_id(frame: Buffer, size: int, *, flexible: bool) -> tuple[str | None, int]:
    """The fields after `REQUEST_HEAD`: (client id, position of the body). size: that of the client
    id, from the head. flexible: tagged fields follow. Raises MalformedRequest.
    """
    position = 10
    client_id = None
    if size >= 0:
        position += size
        if position > len(frame):
            raise BufferUnderflow(f"client id of {size} bytes in a request of {len(frame)}")
        try:
            client_id = str(frame[10:position], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"client id is not UTF-8: {error}") from None
    elif size != -1:
        raise MalformedRequest(f"client id of length {size}")
    if flexible:
        if position < len(frame) and not frame[position]:
            return client_id, position + 1  # no tagged fields, as nearly always
        count, position = read_unsigned_varint(frame, position)
        if count:
            position = skip_tagged_fields(frame, position, count)
    return client_id, position


def encode_request_frame(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> list[Part]:
    """A whole request frame, including the length, as a list of pieces to be sent in order."""
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    head = bytearray(4)
    head += REQUEST_HEAD.pack(message.API_KEY, version, correlation_id, size)
    head += name
    if request_header_version(message.API_KEY, version) == 2:
        head.append(0)
    return _frame(head, message, version)


def decode_response_header(frame: Buffer, api_key: int, version: int) -> tuple[int, int]:
    """Read the header of a response, given without its length prefix.

    Returns (correlation id, position of the body).
    """
    try:
        (correlation_id,) = LENGTH.unpack_from(frame)
    except StructError:
        raise BufferUnderflow(f"a response of {len(frame)} bytes has no header") from None
    position = 4
    if response_header_version(api_key, version) == 1:
        count, position = read_unsigned_varint(frame, position)
        if count:
            position = skip_tagged_fields(frame, position, count)
    return correlation_id, position


def encode_response_frame(
    api_key: int, version: int, correlation_id: int, message: Message
) -> list[Part]:
    """A whole response frame, including the length, as a list of pieces to be sent in order.

    The first piece is a bytearray that begins with the length. Records by reference are separate
    pieces.
    """
    head = bytearray(_LENGTH_AND_ID.pack(0, correlation_id))
    if response_header_version(api_key, version) == 1:
        head.append(0)
    return _frame(head, message, version)


def _frame(head: bytearray, message: Message, version: int) -> list[Part]:
    """Encode after the head, whose first four bytes become the length of everything after them."""
    parts = encode_onto(head, message, version)
    size = len(head) if len(parts) == 1 else sum(map(part_size, parts))
    LENGTH.pack_into(head, 0, size - 4)
    return parts
