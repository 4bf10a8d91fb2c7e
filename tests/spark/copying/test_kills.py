"""Whole runs of the copying jobs with a kill in the middle of batches: each record once, in its
partition and in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.archive import ArchiveOptions, archive
from spark_jobs.java import java_problem
from spark_jobs.translate.job import translate
from spark_jobs.translate.options import TranslateOptions
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.groups import commit_offsets, committed_offsets
from tests.spark.copying.records import check_map, content, fill, offset_map, records_of
from tests.spark.kill_rounds import ROUNDS, Rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(7200),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PARTITIONS = 3
NewTopic = Callable[[int], str]


def check(bootstrap: str, topic: str, copy: str, count: int) -> None:
    sources, copies = (records_of(bootstrap, name, PARTITIONS) for name in (topic, copy))
    assert sum(map(len, copies)) == count
    assert [content(one) for one in copies] == [content(one) for one in sources]


@ROUNDS
def test_replay(mortal: BrokerProcess, new_mortal_topic: NewTopic, rounds: int) -> None:
    bootstrap = mortal.bootstrap_servers
    topic, copy = new_mortal_topic(PARTITIONS), new_mortal_topic(PARTITIONS)
    arguments = ["replay", "--bootstrap-servers", bootstrap, "--topic", topic, "--to", copy]
    arguments += ["--offsets", "map"]
    count = Rounds(
        arguments, lambda numbers: fill(bootstrap, topic, numbers, PARTITIONS), mortal
    ).run(rounds)
    check(bootstrap, topic, copy, count)
    sources, copies = (records_of(bootstrap, name, PARTITIONS) for name in (topic, copy))
    check_map(offset_map(bootstrap, f"replay-{copy}"), copy, sources, copies)


@ROUNDS
def test_restore_with_offsets_kept(
    spark: SparkSession,
    mortal: BrokerProcess,
    new_mortal_topic: NewTopic,
    tmp_path: Path,
    rounds: int,
) -> None:
    bootstrap = mortal.bootstrap_servers
    topic, copy = new_mortal_topic(PARTITIONS), new_mortal_topic(PARTITIONS)
    out = str(tmp_path / "out")
    archiving = ArchiveOptions(output=out, bootstrap_servers=bootstrap, subscribe=topic)

    def feed(numbers: range) -> None:
        fill(bootstrap, topic, numbers, PARTITIONS)
        archive(spark, archiving)

    arguments = ["restore", "--bootstrap-servers", bootstrap, "--archive", out, "--to", copy]
    count = Rounds([*arguments, "--offsets", "keep"], feed, mortal).run(rounds)
    check(bootstrap, topic, copy, count)
    assert records_of(bootstrap, copy, PARTITIONS) == records_of(bootstrap, topic, PARTITIONS)


@ROUNDS
def test_mirror_and_a_group_that_goes_on_at_the_copy(
    mortal: BrokerProcess, new_mortal_topic: NewTopic, tmp_path: Path, rounds: int
) -> None:
    bootstrap = mortal.bootstrap_servers
    topic = new_mortal_topic(PARTITIONS)
    arguments = ["mirror", "--bootstrap-servers", bootstrap, "--topics", topic]
    arguments += ["--prefix", "copy.", "--checkpoint", str(tmp_path), "--queryName", topic]
    count = Rounds(
        arguments, lambda numbers: fill(bootstrap, topic, numbers, PARTITIONS), mortal
    ).run(rounds)
    copy = f"copy.{topic}"
    check(bootstrap, topic, copy, count)
    sources, copies = (records_of(bootstrap, name, PARTITIONS) for name in (topic, copy))
    client = BlockingClient(ClusterAddress(bootstrap))
    moments = random.Random(5)
    for number in range(20):
        group = f"group-{topic}-{number}"
        read = [moments.randrange(len(records)) for records in sources]
        committed = {p: sources[p][count].offset for p, count in enumerate(read)}
        commit_offsets(client, group, {topic: committed})
        translate(TranslateOptions(group, bootstrap, query_name=topic), execute=True)
        found = committed_offsets(client, group)[copy]
        assert found == {p: copies[p][count].offset for p, count in enumerate(read)}
    client.close()


@ROUNDS
def test_dlq(
    mortal: BrokerProcess, new_mortal_topic: NewTopic, tmp_path: Path, rounds: int
) -> None:
    """Every record is in one of two topics; empty values are no JSON, and dead."""
    bootstrap = mortal.bootstrap_servers
    topic, good = new_mortal_topic(PARTITIONS), new_mortal_topic(PARTITIONS)
    arguments = ["dlq", "--bootstrap-servers", bootstrap, "--topic", topic, "--to", good]
    arguments += ["--decode", "json", "--checkpoint", str(tmp_path)]
    count = Rounds(
        arguments, lambda numbers: fill(bootstrap, topic, numbers, PARTITIONS), mortal
    ).run(rounds)
    used, dead = (records_of(bootstrap, name, PARTITIONS) for name in (good, f"{topic}.dlq"))
    sources = records_of(bootstrap, topic, PARTITIONS)
    assert sum(map(len, used)) + sum(map(len, dead)) == count
    for partition, records in enumerate(sources):
        usable = [record for record in records if record.value is None]
        assert content(used[partition]) == content(usable)
        others = [record for record in records if record.value is not None]
        assert [(r.timestamp, r.key, r.value) for r in dead[partition]] == [
            (r.timestamp, r.key, r.value) for r in others
        ]
