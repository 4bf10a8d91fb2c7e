"""Starts and batches of streaming copies on a real broker, with a stand-in for Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from os import urandom
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from spark_jobs.checkpoint import batch_ends, format_offsets, read_query_log
from spark_jobs.cluster import Subscription, Topics
from spark_jobs.copying.opening import describe_start, opened
from spark_jobs.copying.options import StreamOptions
from spark_jobs.copying.start import query_id
from spark_jobs.copying.stream import CopyBatches
from spark_jobs.copying.targets import create_target, find_target
from spark_jobs.errors import StartRefused
from spark_jobs.exactly_once.driver import QueryDriver, QuerySettings
from spark_jobs.exactly_once.errors import SecondDriver
from spark_jobs.exactly_once.produce import produce
from spark_jobs.identity import read_identity
from spark_jobs.storage import Folder, absolute
from spark_jobs.wire.client import BlockingClient, ClusterAddress
from spark_jobs.wire.offsets import topic_facts
from tests.clients.adapters import wait_until


@pytest.fixture
def options(client: BlockingClient, tmp_path: Path) -> StreamOptions:
    """Of a copy of two topics with ten records each."""
    names = tuple(f"{name}-{urandom(4).hex()}" for name in "ab")
    for name in names:
        create_target(client, name, 1, {})
        append(client, name, 10)
    servers = client.address.bootstrap_servers
    return StreamOptions(
        "mirror",
        f"query-{names[0]}",
        Subscription(names),
        str(tmp_path / "checkpoint"),
        "copies",
        servers,
        servers,
        source_options={"failOnDataLoss": "false"},
        targets={name: (f"copy-{name}",) for name in names},
    )


def append(client: BlockingClient, topic: str, count: int) -> None:
    batch = build_batch([(0, None, b"x", ()) for _ in range(count)])
    produce(client, TopicPartition(topic, 0), batch, timeout_ms=10_000)


def delete(client: BlockingClient, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": client.address.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(20)
    fresh = BlockingClient(client.address)
    wait_until(lambda: not topic_facts(fresh, [topic]), 20, "the topic is gone")
    fresh.close()


class Writer:
    """Writes batches without records."""

    def __init__(self, driver: QueryDriver, checkpoint: Folder, query: str) -> None:
        self.driver, self.checkpoint, self.query = driver, checkpoint, query

    def __call__(self, frame: Any, batch_id: int, topics: Topics) -> None:
        ends = batch_ends(self.checkpoint, batch_id) or {}
        self.driver.write_batch(batch_id, lambda grant: [], query_id=self.query, end_offsets=ends)

    def close(self) -> None:
        self.driver.close()

    def tally(self) -> dict[str, int]:
        return {}

    def take(self, tally: Mapping[str, int]) -> None:
        pass


def run(options: StreamOptions) -> int:
    """A start and the batch of what is new, as Spark has it; gives the number of its records."""
    with opened(options) as copy:
        client = BlockingClient(ClusterAddress(options.target_servers))
        targets = [name for each in options.targets.values() for name in each]
        for name in targets:
            if find_target(client, name) is None:
                create_target(client, name, 1, {})
        settings = QuerySettings(
            options.query_name, tuple(targets), adopt_checkpoint=copy.is_adopted
        )
        writer = Writer(QueryDriver(client, settings), copy.query, query_id(copy.identity))
        batches = CopyBatches(options, copy.checkpoint, copy.lease_id, writer)
        log = read_query_log(copy.query)
        start = log.position or copy.identity.starting
        end = {name: facts.latest for name, facts in copy.view.topics.items()}
        batch_id = log.committed + 1
        content = f"v1\n{json.dumps({'batchWatermarkMs': 0})}\n{format_offsets(end)}"
        copy.query.write(f"offsets/{batch_id}", content.encode())
        try:
            batches(None, batch_id)  # type: ignore[arg-type]  # the writer ignores the frame
            copy.query.write(f"commits/{batch_id}", b"v1\n{}")
        finally:
            writer.close()
        return sum(
            offset - start.get(name, {}).get(partition, 0)
            for name, offsets in end.items()
            for partition, offset in offsets.items()
        )


def only_first(options: StreamOptions) -> StreamOptions:
    name = options.subscription.topics[0]
    return replace(
        options, subscription=Subscription((name,)), targets={name: options.targets[name]}
    )


def test_a_start_that_is_refused_leaves_a_run_of_the_same_name_alone(
    client: BlockingClient, options: StreamOptions, tmp_path: Path
) -> None:
    """It fenced it first, so that both were down."""
    run(options)
    driver = QueryDriver(client, QuerySettings(options.query_name, ()))
    identity = read_identity(Folder(absolute(options.checkpoint)))
    assert identity is not None

    def goes_on(batch_id: int) -> None:
        driver.write_batch(batch_id, lambda grant: [], query_id=query_id(identity))

    goes_on(1)
    new = replace(options, checkpoint=str(tmp_path / "new"))
    with pytest.raises(StartRefused, match="is missing or another: beginning anew would repeat"):
        run(new)
    goes_on(2)
    run(replace(new, query_name=f"other-{options.query_name}"))
    with pytest.raises(StartRefused, match="with another checkpoint than"):
        run(new)
    with pytest.raises(StartRefused, match="belongs to copies, not to others"):
        run(replace(new, target="others", resume_from="output"))
    goes_on(3)
    with opened(replace(new, resume_from="checkpoint")):
        pass
    with pytest.raises(SecondDriver):
        goes_on(4)


def test_a_topic_that_is_left_out_and_read_again(
    client: BlockingClient, options: StreamOptions
) -> None:
    assert run(options) == 20
    append(client, options.subscription.topics[0], 3)
    assert run(only_first(options)) == 3
    append(client, options.subscription.topics[1], 5)
    for call in (run, describe_start):
        with pytest.raises(StartRefused, match=r"was not read for a while .* up to 10 records"):
            call(options)
    assert run(replace(only_first(options), resume_from="output")) == 0
    with pytest.raises(StartRefused, match="was not read for a while"):
        run(options)
    assert run(replace(options, resume_from="output")) == 5
    assert run(options) == 0


def test_a_target_that_is_deleted(client: BlockingClient, options: StreamOptions) -> None:
    run(options)
    one, two = options.subscription.topics
    (copy,) = options.targets[two]
    append(client, one, 3)
    delete(client, copy)
    for call in (run, describe_start):
        with pytest.raises(StartRefused, match=f"topic {copy} was deleted or created again"):
            call(options)
    create_target(client, copy, 1, {})
    append(client, copy, 50)
    with pytest.raises(StartRefused, match=f"topic {copy} was deleted or created again"):
        run(options)
    assert run(replace(options, resume_from="output")) == 13
    assert run(options) == 0


def test_a_target_that_is_deleted_before_it_has_anything(
    client: BlockingClient, options: StreamOptions
) -> None:
    name = f"empty-{urandom(4).hex()}"
    create_target(client, name, 1, {})
    topics = (*options.subscription.topics, name)
    options = replace(
        options,
        subscription=Subscription(topics),
        targets={**options.targets, name: (f"copy-{name}",)},
    )
    run(options)
    delete(client, f"copy-{name}")
    run(options)
    append(client, name, 4)
    assert run(options) == 4
    assert run(options) == 0


def test_the_identity_has_the_targets_ids(client: BlockingClient, options: StreamOptions) -> None:
    checkpoint = Folder(absolute(options.checkpoint))
    run(options)
    identity = read_identity(checkpoint)
    (copy,) = options.targets[options.subscription.topics[1]]
    assert identity is not None
    assert identity.targets == {
        name: facts.topic_id
        for name, facts in topic_facts(client, sum(options.targets.values(), ())).items()
    }
    delete(client, copy)
    run(replace(options, resume_from="earliest"))
    again = read_identity(checkpoint)
    assert again is not None
    assert again.targets[copy] not in ("", identity.targets[copy])


def test_a_topic_that_is_added_while_a_batch_without_it_is_planned(
    client: BlockingClient, options: StreamOptions
) -> None:
    """It is not part of the copy by that batch, and need not be known to the tokens."""
    run(only_first(options))
    with opened(only_first(options)) as copy:
        first = options.subscription.topics[0]
        content = f"v1\n{{}}\n{format_offsets({first: {0: 10}})}"
        copy.query.write("offsets/1", content.encode())
        settings = QuerySettings(options.query_name, ())
        driver = QueryDriver(BlockingClient(client.address), settings)
        writer = Writer(driver, copy.query, query_id(copy.identity))
        batches = CopyBatches(options, copy.checkpoint, copy.lease_id, writer)
        batches(None, 1)  # type: ignore[arg-type]  # the writer ignores the frame
        copy.query.write("commits/1", b"v1\n{}")
        writer.close()
    assert run(options) == 10
