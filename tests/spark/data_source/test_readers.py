"""The readers of the format `kbroker` on a broker, called as Spark calls them, without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.errors import JobError
from tests.clients.adapters import ConfluentAdapter, Sent

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark.sql.datasource")

from spark_jobs.cluster import TopicFacts, Topics  # noqa: E402
from spark_jobs.data_source import readers  # noqa: E402
from spark_jobs.data_source.options import source_options  # noqa: E402
from spark_jobs.data_source.planning import Range  # noqa: E402
from spark_jobs.data_source.readers import KafkaReader, KafkaStreamReader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
BASE_MS = 1_700_000_000_000
HEADERS = {1: (("h", b"x"),)}


def produce(servers: str, topic: str, numbers: range, partitions: int = 2) -> None:
    """Record 0 has no key, record 1 a header."""
    sent = [
        Sent(b"k%d" % n if n else None, b"%d" % n, HEADERS.get(n, ()), BASE_MS + n, n % partitions)
        for n in numbers
    ]
    ConfluentAdapter(servers).produce(topic, sent, codec="lz4", idempotent=True)


@pytest.fixture
def topic(kafka_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    name = f"source-{abs(hash(request.node.name)) % 10**9}"
    kafka_broker.create_topic(name, partitions=2, configs={"retention.ms": "-1"})
    return name


def values(kafka_broker: EmbeddedBroker, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, "subscribe": topic, **more}


def rows(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    found = [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: int(row["value"]))


def test_a_batch(kafka_broker: EmbeddedBroker, topic: str) -> None:
    produce(kafka_broker.bootstrap_servers, topic, range(10))
    given = values(kafka_broker, topic, includeHeaders="true")
    reader = KafkaReader(source_options(given, is_stream=False))
    found = rows(reader, reader.partitions())
    assert [int(row["value"]) for row in found] == list(range(10))
    assert (found[0]["key"], found[0]["headers"]) == (None, None)
    assert found[1]["headers"] == [{"key": "h", "value": b"x"}]
    last = found[9]
    assert (last["topic"], last["partition"], last["offset"], last["timestampType"]) == (
        topic,
        1,
        4,
        0,
    )
    assert last["timestamp"].timestamp() * 1000 == pytest.approx(BASE_MS + 9)
    some = given | {
        "startingOffsets": f'{{"{topic}":{{"0":1,"1":-2}}}}',
        "endingOffsets": f'{{"{topic}":{{"0":3,"1":2}}}}',
    }
    reader = KafkaReader(source_options(some, is_stream=False))
    assert [int(row["value"]) for row in rows(reader, reader.partitions())] == [1, 2, 3, 4]


def test_a_batch_with_nothing_to_read(kafka_broker: EmbeddedBroker, topic: str) -> None:
    """Spark runs one task then, without a partition."""
    given = values(kafka_broker, topic)
    reader = KafkaReader(source_options(given, is_stream=False))
    assert reader.partitions() == []
    assert list(reader.read(None)) == []


def test_a_timestamp_that_spark_cannot_have(kafka_broker: EmbeddedBroker, topic: str) -> None:
    servers = kafka_broker.bootstrap_servers
    largest = (2**63 - 1) // 1000
    kafka_broker.create_topic(
        f"{topic}-late", partitions=1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)}
    )
    sent = [Sent(None, b"%d" % n, (), largest + n, 0) for n in range(2)]
    ConfluentAdapter(servers).produce(f"{topic}-late", sent, codec="none", idempotent=True)
    given = values(kafka_broker, f"{topic}-late")
    reader = KafkaReader(source_options(given, is_stream=False))
    why = rf"{topic}-late-0 has at offset 1 the timestamp {largest + 1} ms, .* startingOffsets"
    with pytest.raises(JobError, match=why):
        rows(reader, reader.partitions())
    until = given | {"endingOffsets": f'{{"{topic}-late":{{"0":1}}}}'}
    reader = KafkaReader(source_options(until, is_stream=False))
    ((batch,),) = (list(reader.read(each)) for each in reader.partitions())
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [largest * 1000]


def test_a_stream_and_its_restart(kafka_broker: EmbeddedBroker, topic: str) -> None:
    servers = kafka_broker.bootstrap_servers
    produce(servers, topic, range(10))
    given = source_options(values(kafka_broker, topic, maxOffsetsPerTrigger="4"), is_stream=True)
    reader = KafkaStreamReader(given)
    start = reader.initialOffset()
    assert start == {topic: {"0": 0, "1": 0}}
    seen = []
    for _ in range(2):
        end = reader.latestOffset()
        seen += rows(reader, reader.partitions(start, end))
        assert reader.initialOffset() == {topic: {"0": 0, "1": 0}}
        reader.commit(start)
        before, start = start, end
    assert [int(row["value"]) for row in seen] == list(range(8))
    reader.stop()

    # With availableNow Spark asks for the end before it says where the query is.
    now = KafkaStreamReader(given)
    assert now.latestOffset() == before
    with pytest.raises(JobError, match="availableNow"):
        now.partitions(start, start)
    now.stop()

    # After a restart Spark names the last batch's end as an empty batch, then asks for the next.
    again = KafkaStreamReader(given)
    assert again.partitions(start, start) == []
    assert len(rows(again, again.partitions(before, start))) == 4
    end = again.latestOffset()
    assert [int(row["value"]) for row in rows(again, again.partitions(start, end))] == [8, 9]
    assert again.latestOffset() == end
    assert again.partitions(end, end) == []
    again.stop()


def test_lost_records_are_never_passed_over(kafka_broker: EmbeddedBroker, topic: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    servers = kafka_broker.bootstrap_servers
    produce(servers, topic, range(10))
    given = values(kafka_broker, topic, maxOffsetsPerTrigger="2")
    strict = KafkaStreamReader(source_options(given, is_stream=True))
    lax = KafkaStreamReader(source_options(given | {"failOnDataLoss": "false"}, is_stream=True))
    start = strict.initialOffset()
    lax.initialOffset()
    end = strict.latestOffset()
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        future.result(20)
    with pytest.raises(JobError, match=rf"3 offsets of {topic}-0 from 0 on were deleted unread"):
        strict.partitions(start, end)
    with pytest.raises(JobError, match="failOnDataLoss=false goes on"):
        strict.latestOffset()
    assert lax.latestOffset() == {topic: {"0": 4, "1": 1}}
    assert [int(row["value"]) for row in rows(lax, lax.partitions(start, lax.latestOffset()))] == [
        1,
        3,
        6,
        8,
    ]
    strict.stop()
    lax.stop()


class Cluster:
    """Topics as a reader would find them on a cluster, each with an id and its offsets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics: Topics = {}
        client = SimpleNamespace(close=lambda: None)
        monkeypatch.setattr(readers, "open_client", lambda options: client)
        monkeypatch.setattr(readers, "topics_of", lambda client, options: self.topics)

    def put(self, topic: str, topic_id: str, *offsets: tuple[int, int]) -> None:
        """offsets: the first and the next one of each partition."""
        earliest, latest = ({n: each[at] for n, each in enumerate(offsets)} for at in (0, 1))
        self.topics = {**self.topics, topic: TopicFacts(topic_id, earliest, latest)}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def stream(**more: str) -> KafkaStreamReader:
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t,u", **more}
    return KafkaStreamReader(source_options(given, is_stream=True))


def planned(reader: KafkaStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
    return [each.value for each in reader.partitions(start, end)]


@pytest.mark.parametrize("size", [10, 500])
def test_a_topic_that_was_created_again_is_read_from_its_first_record(
    size: int, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("t", "u"):
        cluster.put(name, f"{name}-old", (0, 100))
    reader = stream(failOnDataLoss="false")
    start = reader.initialOffset()
    end = reader.latestOffset()
    assert planned(reader, start, end) == [Range("t", 0, 0, 100), Range("u", 0, 0, 100)]
    for name in ("t", "u"):
        cluster.put(name, f"{name}-new", (0, size))
    start, end = end, reader.latestOffset()
    assert sorted(record.message for record in caplog.records) == [
        f"topic {name} was deleted and created again; failOnDataLoss is false" for name in "tu"
    ]
    caplog.clear()
    # The batch is empty, also where it is planned once more after a restart, without the ids.
    for each in (reader, stream(failOnDataLoss="false")):
        assert planned(each, start, end) == []
    start, end = end, reader.latestOffset()
    assert planned(reader, start, end) == [Range("t", 0, 0, size), Range("u", 0, 0, size)]
    assert not caplog.records


def test_a_topic_that_is_created_again_while_a_batch_is_planned(cluster: Cluster) -> None:
    cluster.put("t", "old", (0, 100))
    cluster.put("u", "same", (0, 100))
    reader = stream(failOnDataLoss="false")
    start, end = reader.initialOffset(), reader.latestOffset()
    cluster.put("t", "new", (0, 50))
    assert planned(reader, start, end) == [Range("u", 0, 0, 100)]
    start, end = end, reader.latestOffset()
    assert planned(reader, start, end) == []
    assert planned(reader, end, reader.latestOffset()) == [Range("t", 0, 0, 50)]


@pytest.mark.parametrize("is_stream", [False, True], ids=["batch", "stream"])
def test_offsets_that_the_log_does_not_have(
    is_stream: bool, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """With failOnDataLoss=false, as Spark's source, what there is between them is read."""
    cluster.put("t", "t", (6, 10), (0, 10))
    given = {
        "kafka.bootstrap.servers": "b:1",
        "subscribe": "t",
        "startingOffsets": '{"t":{"0":0,"1":12}}',
    }
    if not is_stream:
        given["endingOffsets"] = '{"t":{"0":99,"1":-1}}'

    def read(**more: str) -> list[Range]:
        options = source_options(given | more, is_stream=is_stream)
        if not is_stream:
            return [each.value for each in KafkaReader(options).partitions()]
        reader = KafkaStreamReader(options)
        return planned(reader, reader.initialOffset(), reader.latestOffset())

    with pytest.raises(JobError, match="t-0 has the offsets 6 to 10, not 0; failOnDataLoss=false"):
        read()
    assert not caplog.records
    assert read(failOnDataLoss="false") == [Range("t", 0, 6, 10)]
    assert [record.message for record in caplog.records][:2] == [
        f"startingOffsets: t-{partition} has the offsets {first} to 10: {taken} is taken instead "
        f"of {named}; failOnDataLoss is false"
        for partition, first, taken, named in ((0, 6, 6, 0), (1, 0, 10, 12))
    ]
    assert len(caplog.records) == (2 if is_stream else 3)


def test_records_of_a_new_partition_cannot_be_lost_unnoticed(cluster: Cluster) -> None:
    """A batch with a new partition fails, and before the restart its first records are deleted."""
    cluster.put("t", "t", (0, 10))
    cluster.put("u", "u", (0, 10))
    reader = stream()
    reader.initialOffset()
    start = reader.latestOffset()
    cluster.put("t", "t", (0, 10), (0, 10))
    end = reader.latestOffset()
    cluster.put("t", "t", (0, 10), (5, 10))
    again = stream()
    with pytest.raises(JobError, match="5 offsets of t-1 from 0 on were deleted unread"):
        again.partitions(start, end)


def test_transactions(kafka_broker: EmbeddedBroker, topic: str) -> None:
    from confluent_kafka import Producer

    servers = kafka_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(30)
    for number, is_committed in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(30)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(30)
    producer.begin_transaction()
    producer.produce(topic, b"3", partition=0)
    producer.flush(30)

    def read(level: str) -> list[int]:
        given = values(kafka_broker, topic, **{"kafka.isolation.level": level})
        reader = KafkaReader(source_options(given, is_stream=False))
        return [int(row["value"]) for row in rows(reader, reader.partitions())]

    assert read("read_committed") == [0, 2]
    assert read("read_uncommitted") == [0, 1, 2, 3]
    producer.abort_transaction(30)


def test_topics_that_are_not_there(kafka_broker: EmbeddedBroker, topic: str) -> None:
    for more, why in (
        ({"subscribe": "absent"}, "topic absent does not exist"),
        ({"subscribePattern": "absent.*"}, "matches no topic"),
        ({"subscribePattern": "("}, r"subscribePattern \(: "),
        ({"assign": f'{{"{topic}":[7]}}'}, f"names {topic}-7, and the topic has 2 partitions"),
    ):
        given = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers, **more}
        with pytest.raises(JobError, match=why):
            KafkaReader(source_options(given, is_stream=False)).partitions()
    given = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
    with pytest.raises(JobError, match="no broker answers"):
        KafkaReader(source_options(given, is_stream=False)).partitions()
    given = {"kafka.bootstrap.servers": kafka_broker.bootstrap_servers}
    pattern = KafkaReader(source_options(given | {"subscribePattern": topic}, is_stream=False))
    assert pattern.partitions() == []
