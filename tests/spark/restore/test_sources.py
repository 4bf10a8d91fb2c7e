"""Where `replay` reads, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from os import urandom

import pytest

from kbroker.model import ZERO_UUID, TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.testing import EmbeddedBroker
from spark_jobs.copying.targets import create_target
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.exactly_once.produce import produce
from spark_jobs.restore.job import describe_check
from spark_jobs.restore.options import RestoreOptions
from spark_jobs.restore.sources import Source, source_of
from spark_jobs.wire.client import BlockingClient, ClusterAddress


@pytest.fixture
def options(kafka_broker: EmbeddedBroker) -> Iterator[RestoreOptions]:
    """Of a topic with two partitions of ten records."""
    name = f"source-{urandom(4).hex()}"
    with closing(BlockingClient(ClusterAddress(kafka_broker.bootstrap_servers))) as client:
        create_target(client, name, 2, {})
        for partition in (0, 1):
            batch = build_batch([(number, None, b"v", ()) for number in range(10)])
            produce(client, TopicPartition(name, partition), batch, timeout_ms=10_000)
    yield RestoreOptions("copy", kafka_broker.bootstrap_servers, topic=name)


def source(options: RestoreOptions, ending: dict[int, int]) -> Source:
    options = RestoreOptions(
        options.to_topic,
        options.bootstrap_servers,
        topic=options.topic,
        ending={options.topic: ending},
    )
    return source_of(options)


def test_the_end_of_a_range(options: RestoreOptions) -> None:
    assert source(options, {}).ends == {0: 10, 1: 10}
    assert source(options, {0: 4}).ends == {0: 4, 1: 10}
    assert source(options, {0: -1, 1: 5}).ends == {0: 10, 1: 5}  # Spark's sign for the end
    assert source(options, {0: -1, 1: 0}).firsts == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ({0: 11}, r"partition 0 of source-.* ends at 10: give that, or -1 for the end"),
        ({7: -1}, r"source-.* has no partition 7: name partitions that it has"),
        ({7: 5, 0: 99}, r"source-.* has no partition 7"),
    ],
)
def test_ends_that_the_topic_does_not_have(
    options: RestoreOptions, ending: dict[int, int], why: str
) -> None:
    with pytest.raises(JobError, match=f"^--endingOffsets: {why}"):
        source(options, ending)


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_topic_is_not_replayed_into_itself(
    options: RestoreOptions,
    monkeypatch: pytest.MonkeyPatch,
    has_ids: bool,  # without them, as before Kafka 2.8, ids of clusters are compared
) -> None:
    """The cluster has two addresses here, so the options look like those of two."""
    if not has_ids:
        monkeypatch.setattr(BlockingClient, "topic_id", lambda *_: ZERO_UUID)
    topic, servers = options.topic, options.bootstrap_servers
    alias = f"localhost:{servers.rpartition(':')[2]}"
    circle = replace(options, to_topic=topic, bootstrap_servers=alias, source_servers=servers)
    with pytest.raises(StartRefused, match=f"{topic} would be replayed into itself") as raised:
        describe_check(circle)
    assert f"{servers} and {alias} are one cluster" in str(raised.value)
    assert f"topic {options.to_topic} is created" in describe_check(
        replace(circle, to_topic=options.to_topic)
    )
    with EmbeddedBroker() as other:
        elsewhere = other.bootstrap_servers
        with closing(BlockingClient(ClusterAddress(elsewhere))) as client:
            create_target(client, topic, 2, {})
        said = describe_check(replace(circle, bootstrap_servers=elsewhere))
        assert f"20 offsets of topic {topic} to write; topic {topic} exists" in said
