"""Records at the offsets of their source: whatever is repeated is appended once, at its place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.testing import EmbeddedBroker
from spark_jobs.exactly_once.errors import Failure, TaskFailure
from spark_jobs.exactly_once.grant import WriterLimits
from spark_jobs.exactly_once.produce import produce
from spark_jobs.exactly_once.topics import TargetTopic
from spark_jobs.restore.kept import (
    KeptGrant,
    KeptPartition,
    ends_foreign,
    new_producer_id,
    write_kept,
)
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from tests.spark.exactly_once.scripted_cluster import ScriptedCluster
from tests.spark.exactly_once.scripted_log import ProducerState

PLACE = TopicPartition("out", 0)
VALUE_BYTES = 20


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(out=1)


def grant(batch_records: int, producer_id: int = 1000, limit: int | None = None) -> KeptGrant:
    """batch_records: in a batch, about."""
    return KeptGrant(
        ClusterAddress("broker:9092"),
        TargetTopic("out", 1, limit),
        producer_id,
        Compression.NONE,
        WriterLimits(batch_bytes=batch_records * (VALUE_BYTES + 24)),
    )


def attempt(cluster: ScriptedCluster, batch_records: int = 4, **more: int) -> KeptPartition:
    return KeptPartition(grant(batch_records, **more), cluster.client(), PLACE)


def value(offset: int) -> bytes:
    return b"%020d" % offset


def write(partition: KeptPartition, offsets: Sequence[int]) -> None:
    for offset in offsets:
        partition.write(offset, (offset, None, value(offset), ()))


def check(cluster: ScriptedCluster, count: int) -> None:
    records = cluster.log("out", 0).all_records()
    assert [(record.offset, record.value) for record in records] == [
        (offset, value(offset)) for offset in range(count)
    ]


def test_a_run_and_the_next(cluster: ScriptedCluster) -> None:
    first = attempt(cluster)
    write(first, range(10))
    first.flush()
    assert first.written == 10
    again = attempt(cluster, 3)
    write(again, range(25))
    again.flush()
    assert again.written == 15
    check(cluster, 25)


@pytest.mark.parametrize("what", ["request", "response"])
def test_a_request_that_is_lost(cluster: ScriptedCluster, what: str) -> None:
    cluster.lose(ApiKey.PRODUCE, what)
    partition = attempt(cluster)
    write(partition, range(12))
    partition.flush()
    check(cluster, 12)


def test_attempts_that_overtake_each_other(cluster: ScriptedCluster) -> None:
    """Each cuts its batches in its own way; all began at the same end."""
    dice = random.Random(9)
    for _ in range(30):
        cluster.create("out", 1)
        attempts = [attempt(cluster, size) for size in (3, 4, 7)]
        reached = [0, 0, 0]
        while min(reached) < 60:
            which = dice.randrange(3)
            following = min(reached[which] + dice.randrange(1, 9), 60)
            write(attempts[which], range(reached[which], following))
            reached[which] = following
            if dice.random() < 0.2:
                attempts[which].flush()
        for each in attempts:
            each.flush()
        check(cluster, 60)


def test_another_producer_is_noticed(cluster: ScriptedCluster) -> None:
    partition = attempt(cluster)
    cluster.log("out", 0).append(bytes(build_batch([(0, None, b"x", ())])), 10_000)
    with pytest.raises(TaskFailure, match="offset 0 of the source is offset 1 of out-0") as raised:
        write(partition, range(4))
    assert raised.value.failure is Failure.FATAL


def foreign_batch(producer_id: int = -1, sequence: int = -1) -> bytes:
    batch = build_batch(
        [(0, None, b"x", ())],
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else 0,
        base_sequence=sequence,
    )
    return bytes(batch)


@pytest.mark.parametrize(
    "foreign",
    [foreign_batch(), foreign_batch(77, 0), foreign_batch(77, 8)],
    ids=["no producer id", "another", "another with the sequence of the place"],
)
def test_a_foreign_record_is_noticed_though_the_broker_has_forgotten_the_sequences(
    cluster: ScriptedCluster, foreign: bytes
) -> None:
    """After producer.id.expiration.ms it takes any sequence, and the source's record at the place
    of the foreign one would count as written.
    """
    first = attempt(cluster)
    write(first, range(8))
    first.flush()
    log, client = cluster.log("out", 0), cluster.client()
    assert not ends_foreign(client, PLACE, 8, 1000)
    assert ends_foreign(client, PLACE, 8, 1001)
    assert log.producers.pop(1000)
    log.producers[77] = ProducerState(0, [(7, 7, 7)] if foreign == foreign_batch(77, 8) else [])
    assert not log.append(foreign, 10_000)[0]
    assert ends_foreign(client, PLACE, 9, 1000)
    with pytest.raises(TaskFailure, match="another producer wrote to out-0 before offset 9") as one:
        attempt(cluster)
    assert one.value.failure is Failure.FATAL


def test_records_behind_a_foreign_one_are_not_at_their_places(cluster: ScriptedCluster) -> None:
    cluster.log("out", 0).append(foreign_batch(), 10_000)
    cluster.log("out", 0).append(foreign_batch(1000, 0), 10_000)
    assert ends_foreign(cluster.client(), PLACE, 2, 1000)


def test_a_marker_is_foreign_and_a_partition_without_records_is_not(
    cluster: ScriptedCluster,
) -> None:
    """The copy itself writes without transactions."""
    log, client = cluster.log("out", 0), cluster.client()
    assert not ends_foreign(client, PLACE, 0, 1000)
    log.mark(1000, 0, commit=True)
    assert ends_foreign(client, PLACE, 1, 1000)
    log.batches.clear()  # as the cleaner does with a tombstone of a forgotten producer
    assert not ends_foreign(client, PLACE, 1, 1000)
    assert 10 < cluster.clock.now - 100 < 11
    log.start = 1
    assert not ends_foreign(client, PLACE, 1, 1000)


def test_a_real_broker(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    address = ClusterAddress(kafka_broker.bootstrap_servers)
    place = TopicPartition(kafka_topic, 0)
    with closing(BlockingClient(address)) as client:
        kept = KeptGrant(address, TargetTopic(kafka_topic, 1, None), new_producer_id(client))
        for end in (5, 12):
            partition = KeptPartition(kept, client, place)
            write(partition, range(end))
            partition.flush()
            assert not ends_foreign(client, place, end, kept.producer_id)
        produce(client, place, bytearray(foreign_batch()), timeout_ms=10_000)
        assert ends_foreign(client, place, 13, kept.producer_id)
        with pytest.raises(TaskFailure, match="another producer wrote to"):
            KeptPartition(kept, client, place)


def test_a_gap_is_refused_before_anything_behind_it_is_written(cluster: ScriptedCluster) -> None:
    partition = attempt(cluster)
    with pytest.raises(TaskFailure, match="no record for out-0 at offset 4, the next one is 6"):
        write(partition, [0, 1, 2, 3, 6])
    check(cluster, 4)


def test_an_end_that_was_lost_is_reported(cluster: ScriptedCluster) -> None:
    """The sequence before is not there: nothing is written at a wrong place."""
    first = attempt(cluster)
    write(first, range(8))
    log = cluster.log("out", 0)
    log.producers[1000].sequences = [(0, 3, 0)]
    log.batches.pop()
    log.end = 4
    with pytest.raises(TaskFailure, match="ends at 4 and does not take offset 8") as raised:
        write(first, range(8, 12))
    assert raised.value.failure is Failure.RESTART


def test_batches_are_cut_down_to_what_the_topic_takes(cluster: ScriptedCluster) -> None:
    partition = attempt(cluster, 8, limit=200)
    write(partition, range(16))
    check(cluster, 16)
    with pytest.raises(TaskFailure, match=r"too large for out-0: raise max.message.bytes=50"):
        write(attempt(cluster, 1, limit=50), range(16, 18))


def test_every_run_has_a_producer_id_of_its_own(cluster: ScriptedCluster) -> None:
    assert new_producer_id(cluster.client()) == 1000
    assert cluster.requests.count(ApiKey.INIT_PRODUCER_ID) == 1


def test_a_cluster_that_is_down_is_a_report() -> None:
    pa = pytest.importorskip("pyarrow")
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([0], pa.int32()),
            pa.array([b"v"], pa.binary()),
            pa.array([0], pa.int64()),
        ],
        names=["partition", "value", "source_offset"],
    )
    address = ClusterAddress("localhost:1", connect_timeout_s=0.5)
    down = KeptGrant(address, TargetTopic("out", 1, None), 1)
    report = write_kept(down, [batch])
    assert report.failure is Failure.RESTART
    assert "no broker answers" in report.message
