"""Bytes <-> messages: declarations compiled into straight-line Python per (message, version).

Functions are compiled on first use. Runs of fixed-width fields, with the length or count that
follows them, become one `struct` call; structs are inlined into their message's function, so there
is no call per field or per struct. The two compilers are in `codec_decode` and `codec_encode`;
`schema` has the declarations, `framing` adds headers and lengths.

Guarantees of a decoder: for any bytes it raises only `BufferUnderflow` or `MalformedRequest`; no
list, string or view is created from a length before that many bytes are known to be available;
bytes and records are views on the buffer (no copy), so a receive buffer must not be reused while
its message is in use. Unknown tagged fields are skipped, so they are lost when a message is written
again.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from kbroker.protocol.codecs.primitives import Buffer
from kbroker.protocol.codecs.schema import Decoder, Encoder, Message, RecordsPayload
from kbroker.protocol.errors import ErrorCode, KafkaError

M = TypeVar("M", bound=Message)

Part = bytes | bytearray | memoryview | RecordsPayload
"""A piece of an encoded message: bytes, or record bytes by reference."""


def decode(message: type[M], buffer: Buffer, version: int, position: int = 0) -> tuple[M, int]:
    """Read one message from buffer[position:]. Returns (message, position after it).

    Bytes after the message are ignored: the caller decides whether they are allowed. Raises
    BufferUnderflow or MalformedRequest for invalid bytes, KafkaError(UNSUPPORTED_VERSION) for a
    version the declaration does not have.
    """
    decoder = message.DECODERS.get(version) or decoder_of(message, version)
    return decoder(buffer if type(buffer) is memoryview else memoryview(buffer), position)


def decoder_of(message: type[M], version: int) -> Decoder:
    """The function behind `decode`, for callers that read very many small messages. It also accepts
    bytes, and then returns bytes where `decode` returns views. Raises as `decode` does.
    """
    decoder = message.DECODERS.get(version)
    if decoder is None:
        from kbroker.protocol.codecs.codec_decode import compile_decoder

        _check_version(message, version)
        decoder = message.DECODERS[version] = compile_decoder(message, version)
    return decoder


def decode_in_steps(
    message: type[M],
    buffer: memoryview,
    version: int,
    position: int = 0,
    made: list[object] | None = None,
) -> Generator[None, None, tuple[M, int]]:
    """As `decode`, for a message with possibly very many items: yields after a bounded number of
    them, so that other work can be done in between. made: receives the message at the first step;
    if the bytes turn out to be invalid, it has the part that was read, in which some structs lack
    fields.
    """
    decoder = message.STEP_DECODERS.get(version)
    if decoder is None:
        from kbroker.protocol.codecs.codec_decode import compile_decoder

        _check_version(message, version)
        decoder = compile_decoder(message, version, in_steps=True)
        message.STEP_DECODERS[version] = decoder
    return decoder(buffer, position, [] if made is None else made)


def encode(message: Message, version: int) -> bytes:
    """Write a message as one bytes object.

    Records by reference are rejected (ValueError); other errors as in `encode_parts`.
    """
    return bytes(_encoder(type(message), version)(message, bytearray(), None))


def encode_parts(message: Message, version: int) -> list[Part]:
    """Write a message as a list of pieces, to be sent in order.

    A records field that is not bytes-like becomes a piece unchanged; so do bytes-like records above
    4 KiB. Raises KafkaError(UNSUPPORTED_VERSION) if a field that this version lacks was set and is
    not ignorable, and ValueError if a value does not fit its field.
    """
    return encode_onto(bytearray(), message, version)


def encode_onto(head: bytearray, message: Message, version: int) -> list[Part]:
    """As `encode_parts`, but the first piece is `head`, with the message appended to it."""
    parts: list[Part] = []
    rest = _encoder(type(message), version)(message, head, parts)
    if rest or not parts:
        parts.append(rest)
    return parts


def encode_in_steps(message: Message, version: int) -> Generator[None, None, list[Part]]:
    """As `encode_parts`, in steps like `decode_in_steps`."""
    kind = type(message)
    encoder = kind.STEP_ENCODERS.get(version)
    if encoder is None:
        from kbroker.protocol.codecs.codec_encode import compile_encoder

        _check_version(kind, version)
        encoder = kind.STEP_ENCODERS[version] = compile_encoder(kind, version, in_steps=True)
    parts: list[Part] = []
    parts.append((yield from encoder(message, bytearray(), parts)))
    return parts


def part_size(part: Part) -> int:
    """Bytes a piece will take on the wire."""
    return len(part) if isinstance(part, bytes | bytearray | memoryview) else part.size


def _encoder(message: type[Message], version: int) -> Encoder:
    encoder = message.ENCODERS.get(version)
    if encoder is None:
        from kbroker.protocol.codecs.codec_encode import compile_encoder

        _check_version(message, version)
        encoder = message.ENCODERS[version] = compile_encoder(message, version)
    return encoder


def _check_version(message: type[Message], version: int) -> None:
    if version not in message.VERSIONS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{message.__name__} has versions {message.VERSIONS}, not {version}",
        )
