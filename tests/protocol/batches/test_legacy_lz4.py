"""The header checksum of lz4 frames in magic 0."""

from __future__ import annotations

import pytest

from kbroker.protocol.batches.compression import Compression, compress
from kbroker.protocol.batches.legacy_records import Message, iter_unpacked
from kbroker.protocol.errors import KafkaError
from tests.protocol.message_sets import message_set


def test_an_lz4_frame_with_a_content_size_in_magic_0() -> None:
    import lz4.frame

    inner = bytes(message_set(2, 0))
    packed = lz4.frame.compress(inner, store_size=True)
    broken = packed[:14] + b"\x00" + packed[15:]  # the header checksum
    message = Message(1, 0, 0, True, Compression.LZ4, -1, None, broken)
    assert [one.offset for one in iter_unpacked(message)] == [0, 1]
    message.value = compress(Compression.LZ4, inner)[:5]
    with pytest.raises(KafkaError):
        list(iter_unpacked(message))
