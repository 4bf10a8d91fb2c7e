"""A round driven by hand: what it indexes, writes and charges, and when it stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.cleaner.round import CleaningRound
from kbroker.log.cleaner.steps import CleaningStopped, Source
from kbroker.log.cleaner.throttle import Throttle
from kbroker.log.storage import names
from kbroker.log.storage.files import LogFile
from kbroker.log.storage.index_entries import AbortedTransaction
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record, iter_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_index_bytes=4096)


def batch(base_offset: int, *keys: str, value_bytes: int = 1, **options: object) -> bytes:
    records = [(NOW_MS, key.encode(), bytes(value_bytes), []) for key in keys]
    return bytes(build_batch(records, base_offset=base_offset, **options))  # type: ignore[arg-type]  # the keywords of build_batch


def source(folder: Path, base: int, following: int, *batches: bytes, **options: int) -> Source:
    path = folder / names.offset_name(base, names.LOG)
    path.write_bytes(b"".join(batches))
    return Source(LogFile(str(path)), base, following, path.stat().st_size, **options)


class Charged(Throttle):
    """charged: bytes read and written so far."""

    charged = 0

    def charge(self, count: int) -> float:
        self.charged += count
        return super().charge(count)


def begin(
    folder: Path,
    *,
    first_dirty_offset: int = 0,
    map_bytes: int = 1 << 20,
    buffer_bytes: int = 1 << 20,
    throttle: Throttle | None = None,
) -> CleaningRound:
    return CleaningRound(
        str(folder),
        CONFIG,
        {},
        now_ms=NOW_MS,
        first_dirty_offset=first_dirty_offset,
        upper_offset=1000,
        map_bytes=map_bytes,
        buffer_bytes=buffer_bytes,
        throttle=throttle or Throttle(0),
    )


def cleaned(folder: Path, round_: CleaningRound, *sources: Source) -> list[tuple[int, str]]:
    """(offset, key) of what one group of these segments becomes."""
    round_.begin_group(sources[0].base_offset)
    for each in sources:
        round_.clean_segment(each)
    result = round_.end_group(1_000_000_000)
    path = folder / (names.offset_name(sources[0].base_offset, names.LOG) + names.CLEANED)
    content = path.read_bytes()
    assert len(content) == result.size and path.stat().st_mtime_ns == 1_000_000_000
    return [
        (record.offset, (record.key or b"").decode())
        for position, header in iter_batches(content)
        for record in iter_records(content[position : position + header.size_bytes], header)
    ]


@pytest.mark.parametrize("buffer_bytes", [0, 100, 1 << 20])
def test_the_last_record_of_each_key_remains(tmp_path: Path, buffer_bytes: int) -> None:
    first = source(tmp_path, 0, 10, batch(0, "a", "b"), batch(2, "a", "c", value_bytes=6000))
    second = source(tmp_path, 10, 20, batch(10, "b"))
    throttle = Charged(0)
    round_ = begin(tmp_path, buffer_bytes=buffer_bytes, throttle=throttle)
    assert round_.index_segment(first) and round_.index_segment(second)
    assert round_.end_offset == 20
    assert cleaned(tmp_path, round_, first, second) == [(2, "a"), (3, "c"), (10, "b")]
    assert throttle.charged - round_.bytes_written >= 2 * (first.size + second.size)
    assert 0 < round_.bytes_written < first.size + second.size


def test_keys_before_the_dirty_part_are_not_noted(tmp_path: Path) -> None:
    segment = source(tmp_path, 0, 10, batch(0, "a"), batch(1, "b"), batch(2, "c"))
    round_ = begin(tmp_path, first_dirty_offset=2)
    assert round_.index_segment(segment)
    assert len(round_.offsets) == 1 and round_.offsets.get(b"c") == 2


def test_a_full_map_ends_the_round_where_it_is(tmp_path: Path) -> None:
    segment = source(tmp_path, 0, 100, *(batch(number, f"key-{number}") for number in range(9)))
    round_ = begin(tmp_path, map_bytes=500)
    assert not round_.index_segment(segment)
    known = len(round_.offsets)
    assert 0 < known < 9
    assert round_.end_offset == known, "what is beyond it is not known and stays"
    assert len(cleaned(tmp_path, round_, segment)) == 9


def test_a_round_that_is_stopped_leaves_at_the_next_read(tmp_path: Path) -> None:
    segment = source(tmp_path, 0, 10, batch(0, "a"))
    round_ = begin(tmp_path)
    round_.stop.set()
    with pytest.raises(CleaningStopped):
        round_.index_segment(segment)


def test_reads_and_writes_are_charged(tmp_path: Path) -> None:
    charged: list[int] = []

    class Noted(Throttle):
        def charge(self, count: int) -> float:
            charged.append(count)
            return 0.0

    segment = source(tmp_path, 0, 10, batch(0, "a"), batch(1, "a"))
    round_ = begin(tmp_path, throttle=Noted(1.0))
    round_.index_segment(segment)
    assert charged == [segment.size]
    cleaned(tmp_path, round_, segment)
    assert charged == [segment.size, segment.size, segment.size // 2]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        pytest.param(lambda data: data[:-1], "bytes are no batch", id="cut"),
        pytest.param(lambda data: data + b"\x00" * 5, "5 bytes are no batch", id="behind"),
        pytest.param(lambda data: data[:-1] + b"\xff", "the CRC is wrong", id="flipped"),
        pytest.param(
            lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:], "batch length -1", id="length"
        ),
    ],
)
def test_damage_is_named_and_gets_no_new_crc(tmp_path: Path, damage: object, why: str) -> None:
    assert callable(damage)
    segment = source(tmp_path, 0, 10, damage(batch(0, "a")))
    for step in (CleaningRound.index_segment, CleaningRound.clean_segment):
        round_ = begin(tmp_path)
        round_.begin_group(0)
        with pytest.raises(KafkaError, match=why) as caught:
            step(round_, segment)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert segment.file.path in caught.value.message
        (tmp_path / (names.offset_name(0, names.LOG) + names.CLEANED)).unlink()


def test_old_messages_become_batches(tmp_path: Path) -> None:
    old = bytearray()
    write_message_set(old, [Record(0, NOW_MS, b"a", b"1"), Record(1, NOW_MS, b"a", b"2")], magic=1)
    segment = source(tmp_path, 0, 10, bytes(old))
    round_ = begin(tmp_path)
    round_.index_segment(segment)
    assert cleaned(tmp_path, round_, segment) == [(1, "a")]


def test_records_of_an_aborted_transaction_do_not_remain(tmp_path: Path) -> None:
    options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    aborted = batch(0, "a", is_transactional=True, **options)
    segment = source(tmp_path, 0, 10, aborted, batch(1, "b"))
    segment = Source(segment.file, 0, 10, segment.size, aborted=(AbortedTransaction(7, 0, 5, 6),))
    round_ = begin(tmp_path)
    round_.index_segment(segment)
    assert round_.offsets.get(b"a") == -1
    assert cleaned(tmp_path, round_, segment) == [(1, "b")]


def test_files_are_written_into_a_group_only(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no group"):
        begin(tmp_path).clean_segment(source(tmp_path, 0, 10, batch(0, "a")))
