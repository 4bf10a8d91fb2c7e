"""`translate` on a real broker, with a copy that was written without Spark."""

from __future__ import annotations

from dataclasses import replace
from os import urandom

import pytest
from confluent_kafka.admin import AdminClient

from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from spark_jobs.copying.origins import Origin, Registration, register
from spark_jobs.copying.targets import create_target
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.exactly_once.driver import QueryDriver, QuerySettings
from spark_jobs.exactly_once.produce import produce
from spark_jobs.exactly_once.tasks import write_rows
from spark_jobs.exactly_once.topics import MAP_TOPIC
from spark_jobs.translate.job import first_record, translate
from spark_jobs.translate.options import TranslateOptions, translate_options
from spark_jobs.wire.client import BlockingClient
from spark_jobs.wire.groups import commit_offsets, committed_offsets
from spark_jobs.wire.offsets import topic_facts
from tests.clients.adapters import wait_until
from tests.spark.copying.records import content, records_of

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def source(client: BlockingClient) -> str:
    """A topic with ten records."""
    name = f"source-{urandom(4).hex()}"
    create_target(client, name, 1, {})
    append(client, name, range(10))
    return name


@pytest.fixture
def other(client: BlockingClient) -> str:
    """A topic that is not copied."""
    name = f"other-{urandom(4).hex()}"
    create_target(client, name, 1, {})
    return name


def append(client: BlockingClient, topic: str, numbers: range) -> None:
    batch = build_batch([(number, None, b"%d" % number, ()) for number in numbers])
    produce(client, TopicPartition(topic, 0), batch, timeout_ms=10_000)


class Copy:
    """Copies a topic as `mirror` does, a batch at a time."""

    def __init__(self, client: BlockingClient, source: str, *, is_registered: bool = True) -> None:
        self.client = client
        self.source = source
        self.target = f"copy-{source}"
        self.name = f"query-{source}"
        create_target(client, self.target, 1, {})
        settings = QuerySettings(self.name, (self.target,), map_topic=MAP_TOPIC)
        self.driver = QueryDriver(client, settings)
        self.batch_id = -1
        self.query_id = "first"
        if is_registered:
            one = Registration(self.name, self.target, (Origin("here", source),))
            register(client, one, settings.transactional_id)

    def begin_again(self) -> None:
        """As `mirror --resume-from earliest` does."""
        settings = QuerySettings(
            self.name, (self.target,), map_topic=MAP_TOPIC, adopt_checkpoint=True
        )
        self.driver = QueryDriver(self.client, settings)
        self.batch_id = -1
        self.query_id = "again"

    def write(self, numbers: range, end: int) -> None:
        self.batch_id += 1
        columns = [
            pa.array([0] * len(numbers), pa.int32()),
            pa.array([b"%d" % number for number in numbers], pa.binary()),
            pa.array(numbers, pa.int64()),
            pa.array(numbers, pa.int64()),
        ]
        names = ["partition", "value", "source_offset", "timestamp_ms"]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        self.driver.write_batch(
            self.batch_id,
            lambda grant: [write_rows(grant, iter([batch]), topic=self.target, task=0)],
            query_id=self.query_id,
            end_offsets={self.source: {0: end}},
        )

    @property
    def options(self) -> TranslateOptions:
        servers = self.client.address.bootstrap_servers
        return TranslateOptions(f"group-{self.source}", servers, query_name=self.name)


def test_a_group_goes_on_at_the_copy(client: BlockingClient, source: str) -> None:
    copy = Copy(client, source)
    copy.write(range(0, 4), 4)
    append(client, copy.target, range(100, 103))  # another producer
    copy.write(range(4, 9), 9)
    servers = client.address.bootstrap_servers
    copies = [r for r in records_of(servers, copy.target, 1)[0] if r.timestamp < 100]
    for offset in range(10):
        commit_offsets(client, copy.options.group, {source: {0: offset}})
        moved_to = replace(copy.options, target_group=f"{copy.options.group}-{offset}")
        report = translate(moved_to, execute=True)
        assert report.to_text().endswith(f"1 offset committed for group {moved_to.to_group}")
        found = committed_offsets(client, moved_to.to_group)[copy.target][0]
        rest = [record for record in copies if record.offset >= found]
        assert content(rest) == content([r for r in copies if r.timestamp >= offset])
    commit_offsets(client, copy.options.group, {source: {0: 10}})
    with pytest.raises(StartRefused, match="up to offset 10, the copy is at 9"):
        translate(copy.options, execute=True)


def test_a_copy_that_begins_later(client: BlockingClient, source: str, other: str) -> None:
    copy = Copy(client, source)
    copy.write(range(6, 10), 10)
    commit_offsets(client, copy.options.group, {source: {0: 5}, other: {0: 1}})
    with pytest.raises(StartRefused, match="it has no record of offset 5"):
        translate(copy.options, execute=False)
    commit_offsets(client, copy.options.group, {source: {0: 6}})
    report = translate(copy.options, execute=False)
    assert report.left_out == (other,)
    assert (report.moves[0].target_offset, report.is_committed) == (0, False)
    assert report.to_json()["is_committed"] is False
    assert committed_offsets(client, copy.options.group).keys() == {source, other}


def test_a_topic_that_was_created_again(client: BlockingClient, source: str) -> None:
    """Its records are copied behind the old ones, with the same offsets and other batches."""
    copy = Copy(client, source)
    copy.write(range(0, 5), 5)
    copy.write(range(5, 10), 10)
    copy.begin_again()
    copy.write(range(0), 0)
    commit_offsets(client, copy.options.group, {source: {0: 0}})
    (move,) = translate(copy.options, execute=False).moves
    assert move.target_offset == 11  # behind the ten old records and the first batch's marker
    copy.write(range(0, 3), 3)
    copy.write(range(3, 7), 7)
    again = [r for r in records_of(client.address.bootstrap_servers, copy.target, 1)[0]][10:]
    assert [r.value for r in again] == [b"%d" % number for number in range(7)]
    for offset in range(7):
        commit_offsets(client, copy.options.group, {source: {0: offset}})
        (move,) = translate(copy.options, execute=False).moves
        assert move.target_offset == again[offset].offset
    commit_offsets(client, copy.options.group, {source: {0: 7}})
    (move,) = translate(copy.options, execute=False).moves
    assert move.target_offset == again[6].offset + 1


def test_a_copy_that_was_deleted(client: BlockingClient, source: str) -> None:
    """The group got offsets behind the end, and read nothing or skipped what was written later."""
    copy = Copy(client, source)
    copy.write(range(0, 10), 10)
    servers = client.address.bootstrap_servers
    commit_offsets(client, copy.options.group, {source: {0: 8}})
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([copy.target])[copy.target].result(20)
    wait_until(lambda: not topic_facts(client, [copy.target]), 20, "the topic is gone")
    again = BlockingClient(client.address)
    moved_to = replace(copy.options, target_group=f"{copy.options.group}-moved")
    with pytest.raises(StartRefused, match="which does not exist: the copy was deleted"):
        translate(moved_to, execute=True)
    create_target(again, copy.target, 1, {})
    append(again, copy.target, range(3))
    again.close()
    with pytest.raises(StartRefused, match=r"is offset 8 of .* which ends at offset 3"):
        translate(moved_to, execute=True)
    assert committed_offsets(client, moved_to.to_group) == {}


def test_a_restore_registers_nothing(client: BlockingClient, source: str) -> None:
    """It has one topic on either side."""
    copy = Copy(client, source, is_registered=False)
    copy.write(range(10), 10)
    commit_offsets(client, copy.options.group, {source: {0: 3}})
    (move,) = translate(copy.options, execute=False).moves
    assert (move.target, move.target_offset) == (TopicPartition(copy.target, 0), 3)


def test_what_cannot_be_translated(client: BlockingClient, source: str, other: str) -> None:
    copy = Copy(client, source)
    with pytest.raises(JobError, match="has committed no offsets"):
        translate(copy.options, execute=True)
    commit_offsets(client, copy.options.group, {other: {0: 3}})
    with pytest.raises(JobError, match="has written no batch yet"):
        translate(copy.options, execute=True)
    copy.write(range(2), 2)
    with pytest.raises(JobError, match=rf"copies none of the topics of group .* \({other}\)"):
        translate(copy.options, execute=True)
    down = replace(copy.options, target_servers="localhost:1")
    with pytest.raises(JobError, match="no broker answers"):
        translate(down, execute=True)
    kept = QueryDriver(client, QuerySettings(f"kept-{source}", ()))
    kept.write_batch(0, lambda grant: [], keeper_id=7)
    with pytest.raises(JobError, match="keeps offsets: those of group"):
        translate(replace(copy.options, query_name=f"kept-{source}"), execute=True)


def test_the_first_record(client: BlockingClient, source: str) -> None:
    place = TopicPartition(source, 0)
    assert first_record(client, place, 4, 10) == 4
    assert first_record(client, place, 4, 4) is None
    assert first_record(client, place, 10, 10) is None


def test_options() -> None:
    options = translate_options({"group": "g", "toBootstrapServers": "b:1", "toGroup": "h"})
    assert (options.to_servers, options.to_group, options.query_name) == ("b:1", "h", "mirror")
    for values, why in (
        ({}, "give --group"),
        ({"group": "g", "kafka.security.protocol": "SSL"}, "without TLS and SASL"),
    ):
        with pytest.raises(JobError, match=why):
            translate_options(values)
