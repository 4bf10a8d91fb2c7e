"""Logs of message sets of magic 0 and 1, from Kafka and made here: opened, recovered, read,
searched by offset and time, cut, dumped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.client.consumer import decode_fetched
from kbroker.log.partition_log import PartitionLog
from kbroker.log.storage import names
from kbroker.log.storage.files import FileSlice
from kbroker.log.time_search import find_now
from kbroker.log.tools.dump import dump_file
from kbroker.log.tools.findings import Problem
from kbroker.log.tools.verify import verify_folder
from kbroker.model import TopicPartition
from kbroker.protocol.batches.any_magic import iter_any_batches, iter_any_records
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.record_conversion import write_message_set
from kbroker.protocol.batches.records import Record
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader

Unpack = Callable[[str], Path]

NOW_MS = 1_795_246_900_000
BASE_MS = 1_700_000_000_000
LOG = names.offset_name(0, names.LOG)
INDEX = names.offset_name(0, names.INDEX)
TIME_INDEX = names.offset_name(0, names.TIME_INDEX)
FOLDERS = [
    f"v{magic}-{codec}"
    for magic in (0, 1, 2)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    if magic == 2 or codec != "zstd"
]


def open_log(folder: Path, *, clean_shutdown: bool = False, interval: int = 100) -> PartitionLog:
    return PartitionLog.open(
        folder,
        TopicPartition("topic", 0),
        LogConfig(index_interval_bytes=interval, segment_index_bytes=4096, retention_ms=-1),
        clean_shutdown=clean_shutdown,
        now_ms=NOW_MS,
    )


def read_from(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
    records: list[Record] = []
    while offset < log.log_end_offset:
        found = log.read(offset, max_bytes=max_bytes).records
        assert isinstance(found, FileSlice)
        data = found.read()
        for position, header in iter_any_batches(data):
            records += iter_any_records(data[position : position + header.size_bytes], header)
        offset = records[-1].offset + 1
    return records


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("name", FOLDERS)
def test_kafkas_old_logs_open_and_are_read_from_every_offset(
    unpack: Unpack, name: str, clean: bool
) -> None:
    log = open_log(unpack("legacy") / name, clean_shutdown=clean)
    end = 10 if name.startswith("v0") else 15
    assert (log.log_start_offset, log.log_end_offset) == (0, end)
    for offset in range(end):
        records = read_from(log, offset)
        assert records[0].offset <= offset
        assert [r.offset for r in records] == list(range(records[0].offset, end))
        assert records[-1].value == b"value value value 4"
        small = read_from(log, offset, max_bytes=1)
        assert small[-1].offset == end - 1
    log.close()


@pytest.mark.parametrize("name", FOLDERS)
def test_kafkas_old_logs_dump_as_kafka_dumps_them(unpack: Unpack, name: str) -> None:
    (expected,) = (unpack("dump-legacy") / name).iterdir()
    header, *lines = expected.read_text().splitlines()
    assert header == f"Dumping {name}/{LOG}"
    assert list(dump_file(unpack("legacy") / name / LOG)) == lines


@pytest.mark.parametrize("name", [name for name in FOLDERS if name.startswith("v1")])
def test_times_are_found_inside_wrappers(unpack: Unpack, name: str) -> None:
    log = open_log(unpack("legacy") / name)
    for offset in range(10):
        found = log.offset_for_timestamp(BASE_MS + offset * 1000 - 1)
        assert found == (BASE_MS + offset * 1000, offset, -1)
    assert log.offset_for_timestamp(BASE_MS + 9001) == (BASE_MS + 999_000, 10, -1)
    assert log.offset_for_timestamp(BASE_MS + 999_001) is None
    assert find_now(log.search_max_timestamp()) == (BASE_MS + 999_000, 10, -1)
    log.close()


def test_records_without_timestamps_are_never_found_by_time(unpack: Unpack) -> None:
    log = open_log(unpack("legacy") / "v0-gzip")
    assert log.offset_for_timestamp(0) is None
    assert find_now(log.search_max_timestamp()) is None
    log.close()


def make_log(folder: Path, *, sets: int = 60, magic: int = 1) -> bytes:
    """Wrappers and plain messages in turn, five records each."""
    folder.mkdir()
    out = bytearray()
    for number in range(sets):
        first = number * 5
        records = [
            Record(first + i, BASE_MS + (first + i) * 10, b"key", b"value %d" % i) for i in range(5)
        ]
        codec = Compression.GZIP if number % 2 else Compression.NONE
        write_message_set(out, records, magic=magic, codec=codec)
    (folder / LOG).write_bytes(out)
    return bytes(out)


@pytest.mark.parametrize("magic", [0, 1])
def test_indexes_are_rebuilt_and_used(tmp_path: Path, magic: int) -> None:
    data = make_log(tmp_path / "topic-0", magic=magic)
    log = open_log(tmp_path / "topic-0", interval=300)
    log.close()
    entries = [
        tuple(map(int, re.findall(r"\d+", line)))
        for line in dump_file(tmp_path / "topic-0" / INDEX)
    ]
    starts = {position: header.last_offset for position, header in iter_any_batches(data)}
    assert len(entries) > 20
    assert all(starts[position] == offset for offset, position in entries)
    times = list(dump_file(tmp_path / "topic-0" / TIME_INDEX))
    assert (len(times) > 20) if magic else (times == [])
    log = open_log(tmp_path / "topic-0", clean_shutdown=True, interval=300)
    assert log.log_end_offset == 300
    for offset in range(0, 300, 7):
        assert read_from(log, offset, max_bytes=400)[-1].offset == 299
        if magic:
            found = log.offset_for_timestamp(BASE_MS + offset * 10)
            assert found is not None
            assert found.offset == offset
    log.close()


def test_a_torn_end_is_cut_and_new_batches_follow_the_old_messages(tmp_path: Path) -> None:
    folder = tmp_path / "topic-0"
    data = make_log(folder, sets=7)
    (folder / LOG).write_bytes(data[:-3])
    log = open_log(folder)
    assert log.log_end_offset == 34
    batch = build_batch([(BASE_MS, b"key", b"new", ())])
    assert append_as_leader(log, batch, leader_epoch=3, now_ms=NOW_MS).base_offset == 34
    log.close()
    log = open_log(folder)
    assert [record.offset for record in read_from(log, 0)] == list(range(35))
    assert log.leader_epochs.entries == [(3, 34)]
    log.truncate_to(8)  # inside a wrapper: it goes whole
    assert log.log_end_offset == 8
    assert log.read(5, max_bytes=1000).records == b""
    log.close()


def test_a_flipped_bit_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "topic-0"
    data = bytearray(make_log(folder, sets=4))
    data[-1] ^= 1
    (folder / LOG).write_bytes(data)
    log = open_log(folder)
    assert log.log_end_offset == 15
    log.close()


def test_a_follower_takes_old_messages_as_they_are(tmp_path: Path) -> None:
    data = make_log(tmp_path / "leader-0", sets=4)
    log = open_log(tmp_path / "topic-0")
    assert log.append_as_follower(data, now_ms=NOW_MS).last_offset == 19
    assert log.log_end_offset == 20
    assert len(read_from(log, 0)) == 20
    log.close()


def test_the_clients_own_consumer_reads_them(unpack: Unpack) -> None:
    data = (unpack("legacy") / "v1-gzip" / LOG).read_bytes()
    answer = FetchResponse.PartitionData(records=memoryview(data))
    records, position = decode_fetched(TopicPartition("topic", 0), answer, 7)
    assert [record.offset for record in records] == list(range(7, 15))
    assert position == 15


def test_a_folder_of_them_verifies(tmp_path: Path) -> None:
    folder = tmp_path / "topic-0"
    make_log(folder, sets=20)
    log = open_log(folder)
    log.flush()
    log.close()
    assert [found for found in verify_folder(tmp_path) if isinstance(found, Problem)] == []
    data = bytearray((folder / LOG).read_bytes())
    data[200] ^= 1
    (folder / LOG).write_bytes(data)
    assert [found for found in verify_folder(tmp_path) if isinstance(found, Problem)]
