"""Facts of a partition as its batches tell them: markers, aborted records, compaction, holes."""

from __future__ import annotations

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import ErrorCode, KafkaError
from spark_jobs.verify.facts import PartitionFacts
from spark_jobs.verify.reading import read_partition
from tests.spark.exactly_once.scripted_cluster import PartitionLog, ScriptedCluster

PLACE = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(t=1)


@pytest.fixture
def log(cluster: ScriptedCluster) -> PartitionLog:
    return cluster.log("t", 0)


def append(log: PartitionLog, values: list[bytes], producer: int = -1, epoch: int = -1) -> None:
    batch = build_batch(
        [(0, None, value, ()) for value in values],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=0 if producer >= 0 else -1,
        is_transactional=producer >= 0,
    )
    assert log.append(bytes(batch), 10_000)[0] is ErrorCode.NONE


def read(
    cluster: ScriptedCluster, *, start: int = 0, end: int | None = None, is_compacted: bool = False
) -> PartitionFacts:
    log = cluster.log("t", 0)
    limit = log.last_stable_offset if end is None else end
    return read_partition(cluster.client(), PLACE, start, limit, is_compacted=is_compacted)


def fill(log: PartitionLog) -> None:
    """Offsets 0-2 plain, 3-4 aborted, 5 its marker, 6 committed, 7 its marker, 8-9 plain."""
    append(log, [b"a", b"b", b"c"])
    append(log, [b"x", b"y"], 1, 0)
    log.mark(1, 0, commit=False)
    append(log, [b"d"], 1, 1)
    log.mark(1, 1, commit=True)
    append(log, [b"e", b"f"])


def test_markers_and_aborted_records(cluster: ScriptedCluster, log: PartitionLog) -> None:
    fill(log)
    facts = read(cluster)
    assert (facts.start, facts.end, facts.records) == (0, 10, 6)
    assert (facts.markers, facts.aborted) == (2, 2)
    assert (facts.missing, facts.compacted, facts.duplicates) == (0, 0, 0)


def test_an_empty_partition(cluster: ScriptedCluster) -> None:
    facts = read(cluster)
    assert (facts.records, facts.start, facts.end) == (0, 0, 0)


def test_the_range_may_cut_batches(cluster: ScriptedCluster, log: PartitionLog) -> None:
    fill(log)
    facts = read(cluster, start=1, end=4)
    assert (facts.records, facts.aborted, facts.markers, facts.missing) == (2, 1, 0, 0)
    assert facts.compacted == 0
    one, other = read(cluster, end=9), read(cluster, end=10)
    assert (one.records, other.records) == (5, 6)


def test_the_oldest_records_may_be_left_out_of_the_hashes(
    cluster: ScriptedCluster, log: PartitionLog
) -> None:
    fill(log)
    newest = read(cluster, start=6)
    facts = read_partition(cluster.client(), PLACE, 0, 10, is_compacted=False, older=3)
    assert (facts.records, facts.older, facts.compared, facts.markers) == (6, 3, 3, 2)
    assert (facts.ordered, facts.unordered) == (newest.ordered, newest.unordered)
    assert facts.missing == 0


def test_what_is_open_is_not_read(cluster: ScriptedCluster, log: PartitionLog) -> None:
    fill(log)
    append(log, [b"open"], 2, 0)
    append(log, [b"behind it"])
    facts = read(cluster)
    assert (facts.records, facts.end) == (6, 10)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_batch_that_is_gone(
    cluster: ScriptedCluster, log: PartitionLog, is_compacted: bool
) -> None:
    fill(log)
    del log.batches[1]
    log.aborted.clear()
    facts = read(cluster, is_compacted=is_compacted)
    assert (facts.records, facts.markers) == (6, 2)
    assert (facts.missing, facts.compacted) == ((0, 2) if is_compacted else (2, 0))
    assert facts.holes == (() if is_compacted else ((3, 5),))


def test_records_that_compaction_took_out_of_a_batch(
    cluster: ScriptedCluster, log: PartitionLog
) -> None:
    batch = build_batch([Record(1, 0, b"k", b"v", ())], base_offset=0, last_offset_delta=3)
    log.append(bytes(batch), 10_000)
    append(log, [b"a"])
    facts = read(cluster, is_compacted=True)
    assert (facts.records, facts.compacted, facts.missing) == (2, 3, 0)


@pytest.mark.parametrize(("end", "behind"), [(12, (9, 11)), (10, (9, 10))])
def test_compacted_ranges_are_told(
    cluster: ScriptedCluster, log: PartitionLog, end: int, behind: tuple[int, int]
) -> None:
    """Those within batches, between them, and behind the last one that is read."""
    kept = [Record(1, 0, b"k", b"v", ()), Record(4, 0, b"l", b"v", ())]
    log.append(bytes(build_batch(kept, base_offset=0, last_offset_delta=5)), 10_000)
    append(log, [b"a", b"b"])
    append(log, [b"c"])
    append(log, [b"d", b"e"])
    append(log, [b"f"])
    del log.batches[1], log.batches[2]
    ranges: list[tuple[int, int]] = []
    facts = read_partition(
        cluster.client(),
        PLACE,
        0,
        end,
        is_compacted=True,
        on_compacted=lambda first, stop: ranges.append((first, stop)),
    )
    assert ranges == [(0, 1), (2, 4), (5, 6), (6, 8), behind]
    assert facts.compacted == sum(stop - first for first, stop in ranges)
    assert read(cluster, end=end).holes == ((6, 8), behind)


def test_the_end_of_a_log_that_lost_it(cluster: ScriptedCluster, log: PartitionLog) -> None:
    fill(log)
    del log.batches[-1]
    with pytest.raises(KafkaError) as caught:
        read(cluster)
    assert caught.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    assert cluster.requests.count(ApiKey.FETCH) > 10
