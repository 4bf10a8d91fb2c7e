"""Folders left by Kafka, and folders left by a crash, are recovered to the log that Kafka makes of
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from kbroker.log.manager import LogManager
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producer.producer_state import read_snapshot
from kbroker.log.storage import names
from kbroker.log.storage.batch_reader import read_batches
from kbroker.log.storage.damaged import DamagedLogError
from kbroker.log.time_search import find_now
from kbroker.model import TopicPartition, uuid_to_string
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import iter_records
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.views.log_config import LogConfig
from tests.log.appends import append_as_leader
from tests.log.conftest import KAFKA_DATA
from tests.log.recovery.folders import NOW_MS, files_of, fill, open_log
from tests.own_threads import own_threads

Unpack = Callable[..., Path]

INDEX_INTERVALS = {"compact": 512, "compact-gzip": 512, "compact-txn": 512, "segments": 256}


def kafka_config(topic: str) -> LogConfig:
    """The configuration of the fixtures' broker, as far as it matters here."""
    return LogConfig(
        segment_index_bytes=4096,
        index_interval_bytes=INDEX_INTERVALS.get(topic, 1024),
        retention_ms=-1,
    )


def manager_of(directory: Path) -> LogManager:
    config = BrokerConfig.from_properties({"log.dirs": str(directory), "node.id": "1"})
    return LogManager(config, now_ms=lambda: NOW_MS, random=Random(1), threads=own_threads)


def loaded_lines(name: str) -> dict[str, dict[str, str]]:
    """`loaded-*.txt`: what Kafka reported for each folder."""
    found = {}
    for line in (KAFKA_DATA / name).read_text().splitlines():
        folder, *fields = line.split(" ")
        if not folder.endswith(":"):
            found[folder] = dict(field.split("=") for field in fields)
    return found


def describe(log: PartitionLog) -> dict[str, str]:
    assert log.topic_id is not None
    return {
        "topicId": uuid_to_string(log.topic_id),
        "logStartOffset": str(log.log_start_offset),
        "logEndOffset": str(log.log_end_offset),
        "segments": str(len(log.segments)),
    }


def offsets_for_consumer(log: PartitionLog, *, read_committed: bool) -> Iterator[int]:
    """The offsets of the records that a consumer gets, read as a consumer does."""
    offset = log.log_start_offset
    unstable = log.first_unstable_offset
    end = unstable if read_committed and unstable is not None else log.log_end_offset
    while offset < end:
        info = log.read(offset, max_bytes=300, upper_offset=end)
        aborted = log.aborted_transactions(offset, info.end_offset) if read_committed else []
        data = b"" if isinstance(info.records, bytes) else info.records.read()
        ended: set[int] = set()
        for position, header in iter_batches(data):
            if header.is_control:
                continue
            if any(
                item.producer_id == header.producer_id
                and item.first_offset <= header.base_offset < item.last_offset
                for item in aborted
            ):
                continue
            batch = data[position : position + header.size_bytes]
            yield from (
                record.offset for record in iter_records(batch, header) if record.offset >= offset
            )
        assert info.end_offset > offset, ended
        offset = info.end_offset


def ranges(offsets: list[int]) -> str:
    parts: list[list[int]] = []
    for offset in offsets:
        if parts and parts[-1][1] == offset - 1:
            parts[-1][1] = offset
        else:
            parts.append([offset, offset])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def test_a_clean_kafka_directory_opens_with_kafkas_offsets(unpack: Unpack) -> None:
    manager = manager_of(unpack("data-clean"))
    manager.lock()
    manager.load(kafka_config)
    assert {str(key): describe(log) for key, log in manager.logs.items()} == loaded_lines(
        "loaded-clean.txt"
    )
    assert manager.was_clean
    assert manager.previous_broker_epoch == 180


def test_consumers_are_given_what_kafka_gave_them(unpack: Unpack) -> None:
    manager = manager_of(unpack("data-clean"))
    manager.load(kafka_config)
    for log in manager.logs.values():
        log.on_high_watermark(log.log_end_offset)
    for line in (KAFKA_DATA / "consumed.txt").read_text().splitlines()[1:]:
        said, _, consumed = line.partition(" :")
        topic, partition, isolation, earliest, end, latest_by_time = said.split(" ")
        log = manager.logs[TopicPartition(topic, int(partition))]
        read_committed = isolation == "read_committed"
        unstable = log.first_unstable_offset
        stable_end = log.log_end_offset if unstable is None or not read_committed else unstable
        assert (str(log.log_start_offset), str(stable_end)) == (earliest, end), line
        offsets = list(offsets_for_consumer(log, read_committed=read_committed))
        assert ranges(offsets) == consumed.strip(), line
        by_time = find_now(log.search_max_timestamp())
        if stable_end == log.log_end_offset:
            said_by_time = "-1@-1" if by_time is None else f"{by_time.timestamp}@{by_time.offset}"
            assert said_by_time == latest_by_time, line


def test_a_clean_directory_that_is_opened_and_closed_again_stays_as_it_was(unpack: Unpack) -> None:
    data = unpack("data-clean")
    before = files_of(data)
    manager = manager_of(data)
    manager.lock()
    manager.load(kafka_config)
    manager.close(broker_epoch=180)
    after = files_of(data)
    for name in (names.RECOVERY_POINTS, names.LOG_START_OFFSETS):
        assert sorted(after.pop(name).splitlines()) == sorted(before.pop(name).splitlines())
    strays = set(before) - set(after)
    assert all(name.endswith(names.SNAPSHOT) for name in strays)  # older than the last, as in Kafka
    # an epoch that starts at the log end is dropped at a load; the next leader writes its own
    changed = {name for name in after if after[name] != before[name]}
    assert all(name.endswith(names.LEADER_EPOCHS) for name in changed)


def producers_of(snapshot: bytes) -> list[tuple[object, ...]]:
    """The entries in an order of their own: Kafka's is that of a hash map."""
    return sorted(
        (
            state.producer_id,
            state.producer_epoch,
            state.coordinator_epoch,
            state.last_timestamp,
            state.transaction_first_offset or -1,
            *state.batches,
        )
        for state in read_snapshot(snapshot)
    )


def test_a_killed_and_damaged_kafka_directory_becomes_what_kafka_makes_of_it(
    unpack: Unpack, caplog: pytest.LogCaptureFixture
) -> None:
    data, expected = unpack("data-unclean"), files_of(unpack("data-recovered"))
    manager = manager_of(data)
    manager.lock()
    with caplog.at_level(logging.WARNING):
        manager.load(kafka_config)
    loaded = loaded_lines("loaded-unclean.txt")
    assert {str(key): describe(log) for key, log in manager.logs.items()} == {
        folder: said
        for folder, said in loaded.items()
        if folder.count(".") != 1 or "odd" in folder
        if not folder.endswith(("-stray", "-delete"))
    }
    for cut in ("codec-gzip-0", "codec-none-0", "parts-0"):
        assert any(cut in line and "truncating to offset" in line for line in caplog.messages)
    for log in manager.logs.values():
        log.leader_epochs.assign(6, log.log_end_offset)  # the broker that wrote `expected` led in 6
    manager.checkpoints.write_high_watermarks(
        {key: log.log_end_offset for key, log in manager.logs.items()}
    )
    manager.close(broker_epoch=272)
    actual = files_of(data)
    for name, content in expected.items():
        if name.split("/")[0].endswith(("-stray", "-delete")):
            continue
        if name.endswith(names.SNAPSHOT):
            assert producers_of(actual[name]) == producers_of(content), name
        elif name.endswith("-checkpoint"):
            assert sorted(actual[name].splitlines()) == sorted(content.splitlines()), name
        else:
            assert actual[name] == content, name
    mine = {name for name in actual if "-delete/" not in name}
    assert mine == {name for name in expected if "-stray/" not in name and "-delete/" not in name}


# -- crashes of our own ---------------------------------------------------------------------------


@pytest.mark.parametrize("cut_bytes", [1, 11, 12, 60, 61, 90])
def test_a_torn_tail_is_cut_back_to_the_last_whole_batch(tmp_path: Path, cut_bytes: int) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.release()
    path = tmp_path / "topic-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    log = open_log(tmp_path)
    assert log.log_end_offset == 8
    fill(log, 1)
    assert log.log_end_offset == 10


def test_offsets_that_go_back_end_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.release()
    path = tmp_path / "topic-0" / "00000000000000000000.log"
    *_, (position, last) = iter_batches(path.read_bytes())
    damaged = bytearray(path.read_bytes())
    damaged[position : position + 8] = bytes(8)  # the base offset is not under the CRC
    path.write_bytes(damaged)
    assert open_log(tmp_path).log_end_offset == last.base_offset


def test_zeros_behind_the_log_are_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.release()
    with open(tmp_path / "topic-0" / "00000000000000000000.log", "ab") as file:
        file.write(bytes(5000))
    log = open_log(tmp_path)
    assert log.log_end_offset == 10
    assert log.segments.active.log_file().size() == log.size_bytes


def test_after_a_cut_later_segments_go(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 60)
    bases = list(log.segments.base_offsets)
    assert len(bases) > 2
    log.release()
    path = tmp_path / "topic-0" / names.offset_name(bases[1], names.LOG)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    log = open_log(tmp_path)
    assert log.segments.base_offsets == bases[:2]
    assert log.log_end_offset == bases[2] - 2
    fill(log, 10)
    assert log.log_end_offset == bases[2] - 2 + 20


def test_what_lies_before_the_recovery_point_is_not_read(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 60)
    bases = list(log.segments.base_offsets)
    log.flush()
    log.release()
    path = tmp_path / "topic-0" / names.offset_name(bases[0], names.LOG)
    damaged = bytearray(path.read_bytes())
    damaged[150] ^= 1
    path.write_bytes(damaged)
    assert open_log(tmp_path, recovery_point=bases[2]).log_end_offset == 120
    assert open_log(tmp_path, recovery_point=0).log_end_offset == 2


def test_damage_after_a_clean_stop_is_said_in_one_line(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.close()
    path = tmp_path / "topic-0" / names.offset_name(0, names.LOG)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedLogError, match=r"00000\.log: no record batch at position") as caught:
        open_log(tmp_path, clean_shutdown=True)
    assert "\n" not in str(caught.value)
    assert (
        open_log(tmp_path, recovery_point=10).log_end_offset == 8
    )  # the marker was removed meanwhile


def test_epochs_are_read_from_the_batches_if_their_checkpoint_is_empty(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 60)
    log.flush()
    entries = log.leader_epochs.entries
    log.release()
    (tmp_path / "topic-0" / names.LEADER_EPOCHS).write_bytes(b"")
    assert open_log(tmp_path, recovery_point=120).leader_epochs.entries == entries


def test_a_log_that_ends_before_its_start_begins_anew_after_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.close()
    with pytest.raises(DamagedLogError, match=r"ends at offset 10, before its start, 50"):
        open_log(tmp_path, clean_shutdown=True, log_start_offset=50)
    log = open_log(tmp_path, log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (50, 50, 0)


def test_a_torn_snapshot_is_left_out(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(30):
        append_as_leader(
            log,
            build_batch(
                [(NOW_MS, b"k", b"v" * 50, [])],
                producer_id=7,
                producer_epoch=0,
                base_sequence=sequence,
            ),
            leader_epoch=0,
            now_ms=NOW_MS,
        )
    log.close()
    (tmp_path / "topic-0" / names.offset_name(30, names.SNAPSHOT)).write_bytes(b"\0\1torn")
    log = open_log(tmp_path, clean_shutdown=True)
    assert log.producers.active_producers[7].last_sequence == 29


def test_an_aborted_transaction_is_in_the_index_again_after_recovery(unpack: Unpack) -> None:
    data = unpack("data-clean")
    log = PartitionLog.open(
        data / "txn-0", TopicPartition("txn", 0), kafka_config("txn"), now_ms=NOW_MS
    )
    expected = {path.name: path.read_bytes() for path in (data / "txn-0").glob("*.txnindex")}
    assert len(log.aborted_transactions(0, log.log_end_offset)) == 7
    log.close()
    assert {p.name: p.read_bytes() for p in (data / "txn-0").glob("*.txnindex")} == expected
    assert control_type(next(iter_records(last_batch(log)))) is ControlType.COMMIT


def last_batch(log: PartitionLog) -> bytes:
    path = log.segments.active.path
    *_, (_, batch) = read_batches(path, 0, log.segments.active.size)
    return bytes(batch)


@pytest.mark.parametrize("clean_shutdown", [True, False])
def test_kafkas_metadata_log_opens_too(unpack: Unpack, clean_shutdown: bool) -> None:
    folder = unpack("data-clean") / "__cluster_metadata-0"
    indexes = {path.name: path.read_bytes() for path in folder.glob("*index")}
    log = PartitionLog.open(
        folder,
        TopicPartition("__cluster_metadata", 0),
        LogConfig(segment_index_bytes=10 << 20),
        clean_shutdown=clean_shutdown,
        now_ms=NOW_MS,
    )
    assert log.log_end_offset == 239
    assert log.leader_epochs.entries == [(1, 0), (2, 178)]
    assert (folder / names.offset_name(0, names.INDEX)).stat().st_size == 10 << 20
    log.close()
    assert {path.name: path.read_bytes() for path in folder.glob("*index")} == indexes
