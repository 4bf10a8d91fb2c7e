"""`mirror` between two brokers, and a consumer group that moves."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.cluster import Subscription
from spark_jobs.copying.targets import add_partitions, create_target, own_configs, set_configs
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.mirror.job import describe_check, mirror, with_topics
from spark_jobs.mirror.options import MirrorOptions
from spark_jobs.translate.job import translate
from spark_jobs.translate.options import TranslateOptions
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import commit_offsets, committed_offsets
from tests.spark.copying.records import (
    begin_transaction,
    check_map,
    content,
    fill,
    offset_map,
    records_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the other cluster."""
    overrides = {"log.retention.ms": "-1"}
    with BrokerProcess(tmp_path_factory.mktemp("other") / "data", overrides=overrides) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def here(bootstrap: str) -> Iterator[BlockingClient]:
    client = BlockingClient(ClusterAddress(bootstrap))
    yield client
    client.close()


@pytest.fixture
def there(other: str) -> Iterator[BlockingClient]:
    client = BlockingClient(ClusterAddress(other))
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    return f"mirrored-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def options(bootstrap: str, other: str, name: str, tmp_path: Path) -> MirrorOptions:
    return MirrorOptions(
        Subscription((f"{name}-a", f"{name}-b")),
        str(tmp_path / "checkpoint"),
        bootstrap,
        other,
        source_options={"maxOffsetsPerTrigger": "200"},
        query_name=name,
    )


def check(bootstrap: str, other: str, name: str, topic: str, partitions: int) -> None:
    sources = records_of(bootstrap, topic, partitions)
    copies = records_of(other, topic, partitions)
    assert [content(one) for one in copies] == [content(one) for one in sources]
    check_map(offset_map(other, name), topic, sources, copies)


def test_topics_are_mirrored_and_a_group_moves(
    spark: SparkSession,
    bootstrap: str,
    other: str,
    here: BlockingClient,
    there: BlockingClient,
    name: str,
    options: MirrorOptions,
) -> None:
    one, two = options.subscription.topics
    configs = {
        "cleanup.policy": "compact",
        "max.message.bytes": "2000000",
        # A marker is newer than the records, so that their segment ends and could be compacted.
        "min.compaction.lag.ms": "315360000000",
    }
    create_target(here, one, 2, configs)
    create_target(here, two, 1, {})
    begin_transaction(bootstrap, two, range(5), 1, commit=False)
    fill(bootstrap, two, range(5, 100), 1)
    begin_transaction(bootstrap, two, range(100, 130), 1, commit=True)
    keyed = range(2, 900, 3)  # records with a key, which a compacted topic needs
    fill(bootstrap, one, keyed, 2)
    assert describe_check(options).startswith(f"{other}: begins a new copy; topics {one}, {two}")
    report = mirror(spark, options)
    assert (report.totals.rows, report.totals.batches >= 2) == (len(keyed) + 125, True)
    assert own_configs(there, one) == configs
    check(bootstrap, other, name, one, 2)
    check(bootstrap, other, name, two, 1)

    # More partitions and settings; records; a group in the middle of both.
    add_partitions(here, two, 2)
    set_configs(here, one, {"max.message.bytes": "3000000"})
    fill(bootstrap, two, range(130, 190), 2)
    assert "set max.message.bytes=3000000 of topic" in " ".join(mirror(spark, options).notes)
    check(bootstrap, other, name, two, 2)
    assert mirror(spark, options).totals.rows == 0

    group = f"{name}-readers"
    sources = {topic: records_of(bootstrap, topic, 2) for topic in (one, two)}
    copies = {topic: records_of(other, topic, 2) for topic in (one, two)}
    translated = TranslateOptions(group, bootstrap, other, query_name=name)
    with pytest.raises(JobError, match="has committed no offsets"):
        translate(translated, execute=False)
    for place in (0, 3, 40):
        read = {
            topic: {p: records[place].offset if place < len(records) else records[-1].offset + 1}
            for topic, each in sources.items()
            for p, records in enumerate(each)
            if p == 0
        }
        commit_offsets(here, group, read)
        assert not translate(translated, execute=False).is_committed
        assert translate(translated, execute=True).is_committed
        found = committed_offsets(there, group)
        for topic, offsets in read.items():
            rest = [r for r in sources[topic][0] if r.offset >= offsets[0]]
            goes_on = [r for r in copies[topic][0] if r.offset >= found[topic][0]]
            assert content(goes_on) == content(rest)
    fill(bootstrap, two, range(190, 200), 2)
    commit_offsets(here, group, {two: {0: records_of(bootstrap, two, 2)[0][-1].offset + 1}})
    with pytest.raises(StartRefused, match="wait until the copy is as far"):
        translate(translated, execute=True)


def test_records_do_not_go_round(
    spark: SparkSession,
    bootstrap: str,
    other: str,
    here: BlockingClient,
    name: str,
    options: MirrorOptions,
    tmp_path: Path,
) -> None:
    topic = f"{name}-a"
    create_target(here, topic, 1, {})
    fill(bootstrap, topic, range(20), 1)
    options = replace(options, subscription=Subscription((topic,)))
    mirror(spark, options)
    back = replace(
        options,
        bootstrap_servers=other,
        target_servers=bootstrap,
        checkpoint=str(tmp_path / "back"),
        query_name=f"{name}-back",
    )
    for call in (describe_check, lambda given: mirror(spark, given)):
        with pytest.raises(StartRefused, match=f"topic {topic} is itself a mirror of {topic}"):
            call(back)
    itself = replace(options, target_servers=bootstrap, checkpoint=str(tmp_path / "itself"))
    with pytest.raises(StartRefused, match="mirrored into itself"):
        describe_check(itself)
    # A pattern leaves such topics out instead.
    with pytest.raises(JobError, match="matches no topic but internal ones and mirrors"):
        with_topics(replace(back, subscription=Subscription(pattern=f"{name}.*|__.*")))
    assert mirror(spark, options).totals.rows == 0


def test_a_checkpoint_that_is_lost(
    spark: SparkSession,
    bootstrap: str,
    other: str,
    here: BlockingClient,
    name: str,
    options: MirrorOptions,
    tmp_path: Path,
) -> None:
    topic = f"{name}-a"
    create_target(here, topic, 2, {})
    fill(bootstrap, topic, range(50), 2)
    options = replace(options, subscription=Subscription((topic,)))
    mirror(spark, options)
    fill(bootstrap, topic, range(50, 90), 2)
    anew = replace(options, checkpoint=str(tmp_path / "anew"))
    with pytest.raises(StartRefused, match=r"checkpoint .* is missing or another"):
        mirror(spark, anew)
    assert mirror(spark, replace(anew, resume_from="output")).totals.rows == 40
    fill(bootstrap, topic, range(90, 95), 2)
    assert mirror(spark, anew).totals.rows == 5
    check(bootstrap, other, name, topic, 2)
    with pytest.raises(StartRefused, match="with another checkpoint than"):
        mirror(spark, options)


def test_a_topic_that_is_left_out_and_read_again(
    spark: SparkSession,
    bootstrap: str,
    other: str,
    here: BlockingClient,
    name: str,
    options: MirrorOptions,
) -> None:
    """Spark began it anew, and its records were copied a second time."""
    for topic in options.subscription.topics:
        create_target(here, topic, 1, {})
        fill(bootstrap, topic, range(50), 1)
    mirror(spark, options)
    one, two = options.subscription.topics
    alone = replace(
        options, subscription=Subscription((one,)), source_options={"failOnDataLoss": "false"}
    )
    fill(bootstrap, one, range(50, 60), 1)
    assert mirror(spark, alone).totals.rows == 10
    fill(bootstrap, two, range(50, 70), 1)
    for call in (describe_check, lambda given: mirror(spark, given)):
        with pytest.raises(StartRefused, match=f"topic {two} was not read for a while"):
            call(options)
    assert mirror(spark, replace(options, resume_from="output")).totals.rows == 20
    fill(bootstrap, two, range(70, 75), 1)
    assert mirror(spark, options).totals.rows == 5
    for topic in (one, two):
        check(bootstrap, other, name, topic, 1)
