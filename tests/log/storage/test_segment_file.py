"""The descriptor of a segment's file, and the scan of its batch headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.storage import segment_file
from kbroker.log.storage.files import FileSlice
from kbroker.log.storage.open_files import OpenFiles
from kbroker.log.storage.segment_file import SegmentFile
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import ErrorCode, KafkaError

NOW_MS = 1_700_000_000_000
BATCHES = [
    bytes(build_batch([(NOW_MS + n, None, bytes(10 * n), [])] * (n + 1), base_offset=10 * n))
    for n in range(4)
]


def segment_with(path: Path, content: bytes, open_files: OpenFiles | None = None) -> SegmentFile:
    path.write_bytes(content)
    return SegmentFile(str(path), 0, size=len(content), open_files=open_files or OpenFiles(10))


@pytest.mark.parametrize("chunk_bytes", [43, 44, 100, 200, 8192])
def test_a_scan_names_every_batch_whatever_the_size_of_a_read(
    tmp_path: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_file, "SCAN_CHUNK_BYTES", chunk_bytes)
    segment = segment_with(tmp_path / "0.log", b"".join(BATCHES))
    position, expected = 0, []
    for number, batch in enumerate(BATCHES):
        first = 10 * number
        expected.append((position, first, first + number, len(batch), NOW_MS + number))
        position += len(batch)
    assert list(segment.scan(0)) == expected
    assert list(segment.scan(len(BATCHES[0]))) == expected[1:]
    assert list(segment.scan(0, expected[2][0])) == expected[:2]
    assert list(segment.scan(position)) == []


def test_old_messages_are_scanned_among_batches(tmp_path: Path) -> None:
    old = bytearray()
    write_message_set(old, [Record(3, NOW_MS, None, b"v")], magic=1)
    new = bytes(build_batch([(NOW_MS, None, b"v", [])], base_offset=4))
    segment = segment_with(tmp_path / "0.log", bytes(old + new + old))
    assert [(at, first, last) for at, first, last, _, _ in segment.scan(0)] == [
        (0, 3, 3),
        (len(old), 4, 4),
        (len(old + new), 3, 3),
    ]


@pytest.mark.parametrize("behind", [b"\x00", bytes(43), bytes(70), BATCHES[1][:-1]])
def test_bytes_that_are_no_batch_are_named_with_their_position(
    tmp_path: Path, behind: bytes
) -> None:
    segment = segment_with(tmp_path / "0.log", BATCHES[0] + behind)
    found = segment.scan(0)
    assert next(found)[:2] == (0, 0)
    with pytest.raises(KafkaError, match=f"no record batch at position {len(BATCHES[0])} ") as it:
        next(found)
    assert it.value.code is ErrorCode.CORRUPT_MESSAGE
    assert segment.path in it.value.message


def test_a_file_is_opened_once_and_opened_again_after_it_was_given_back(tmp_path: Path) -> None:
    open_files = OpenFiles(1)
    first = segment_with(tmp_path / "0.log", BATCHES[0], open_files)
    second = segment_with(tmp_path / "1.log", BATCHES[0], open_files)
    assert first.file is None and not first.used
    file = first.log_file()
    assert first.log_file() is file and first.used
    second.log_file()
    assert first.file is None, "the limit is one"
    assert first.log_file() is not file
    assert second.file is None


def test_a_slice_that_is_being_sent_outlives_the_file(tmp_path: Path) -> None:
    segment = segment_with(tmp_path / "0.log", BATCHES[0])
    found = FileSlice(segment.log_file(), 0, len(BATCHES[0]))
    segment.close_file()
    Path(segment.path).unlink()
    assert segment.file is None and found.read() == BATCHES[0]
    segment.close_file()


def test_an_open_file_is_asked_for_its_time_not_its_name(tmp_path: Path) -> None:
    segment = segment_with(tmp_path / "0.log", BATCHES[0])
    segment.log_file()
    time_ms = segment.modified_ms()
    Path(segment.path).rename(tmp_path / "0.log.deleted")
    assert segment.modified_ms() == time_ms
