"""A node's metadata log: snapshots, replay, and logs that Apache Kafka 4.3.1 wrote."""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from kbroker.metadata.image import MetadataImage
from kbroker.metadata.records import encode_record
from kbroker.model import StartupError, uuid_to_string
from kbroker.node.loop.futures import as_future
from kbroker.protocol.messages.stored.metadata_records import (
    NoOpRecord,
)
from kbroker.quorum.disk.snapshots import read_snapshot
from tests.node.metadata_node import TIMERS, MetadataNode, replayed, run, start, topics

KAFKA_DATA = Path(__file__).parent.parent / "data" / "kafka-4.3.1"


def test_snapshots_by_size_leave_the_image_as_it_is(tmp_path: Path) -> None:
    async def script() -> None:
        limit = {"metadata_log_max_record_bytes_between_snapshots": "1000"}
        node = await start(tmp_path, **limit)
        for index in range(30):
            await as_future(node.channel.create_topics(topics(f"t{index}", partitions=2)))
            await asyncio.sleep(0)
        image = node.image
        await node.stop()
        snapshots = sorted((tmp_path / "__cluster_metadata-0").glob("*.checkpoint"))
        assert len(snapshots) > 2
        content = read_snapshot(snapshots[-1])
        assert content.configuration.kraft_version == 1
        again = MetadataNode(tmp_path)
        await again.start()
        later = replace(again.image, offset=0, epoch=0, controllers={})
        assert later == replace(image, offset=0, epoch=0, controllers={})
        await again.stop()

    run(script)


def test_a_snapshot_is_due_after_the_interval(tmp_path: Path) -> None:
    async def script() -> None:
        node = await start(tmp_path, metadata_log_max_snapshot_interval_ms="5000")
        folder = tmp_path / "__cluster_metadata-0"
        await as_future(node.channel.ensure_topic("a"))
        assert len(list(folder.glob("*.checkpoint"))) == 1
        TIMERS.time_ms += 5000
        await as_future(node.channel.ensure_topic("b"))
        await as_future(node.log.snapshotter.idle())
        assert len(list(folder.glob("*.checkpoint"))) == 2
        await node.stop()

    run(script)


def test_a_log_from_the_future_is_refused_in_one_line(tmp_path: Path) -> None:
    async def script() -> None:
        node = await start(tmp_path)
        newer = bytearray(encode_record(NoOpRecord(), 30))
        newer[1] = 99
        node.log.driver.append([bytes(newer)])
        await node.stop()
        with pytest.raises(StartupError, match="newer Kafka") as caught:
            await MetadataNode(tmp_path).start()
        assert "\n" not in str(caught.value)

    run(script)


@pytest.fixture
def kafka_directory(tmp_path: Path) -> Path:
    """The metadata part of a data directory that Apache Kafka 4.3.1 wrote and closed."""
    with tarfile.open(KAFKA_DATA / "data-clean.tar.gz") as archive:
        for member in archive.getmembers():
            path = member.name.split("/", 1)[-1]
            if member.isfile() and ("/" not in path or path.startswith("__cluster_metadata-0/")):
                member.mode = 0o644
                archive.extract(member, tmp_path)
    return next(tmp_path.iterdir())


def test_kafkas_log_replays_to_the_right_image(kafka_directory: Path) -> None:
    """From its newest snapshot, and from the log's first record: both give the same."""
    whole = replayed(kafka_directory, "kbrokerFixtures43100-w")

    async def script() -> None:
        node = MetadataNode(kafka_directory)
        loaded: list[MetadataImage] = []
        node.log.loader.on_image(lambda old, new: loaded.append(new))
        await node.start()
        assert replace(loaded[0], offset=0, epoch=0) == replace(whole, offset=0, epoch=0)
        await node.stop()

    run(script)
    assert (whole.offset, whole.epoch, len(whole.topics)) == (238, 2, 19)
    assert uuid_to_string(whole.topics["codec-none"].topic_id) == "rjv8SIb3Qs-ppaTc_8op_A"
    assert "gone" not in whole.topics
    partition = whole.partition("parts", 2)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, partition.elr) == (-1, 3, (1,))
    assert whole.topic_configs("codec-none") == {
        "retention.ms": "-1",
        "max.message.bytes": "500000",
    }
    assert whole.next_producer_id == 2000
    assert whole.brokers[1].epoch == 180
    assert whole.brokers[1].fenced and whole.brokers[1].in_controlled_shutdown
    assert set(whole.brokers[1].endpoints) == {"PLAINTEXT", "SASL_PLAINTEXT"}
    assert sorted(whole.scram_credentials) == [(1, "admin"), (1, "alice"), (2, "alice")]
    assert (len(whole.acls), len(whole.client_quotas), len(whole.delegation_tokens)) == (2, 5, 1)
    assert whole.configs[16, "metrics-sub"]["interval.ms"] == "60000"
    assert whole.configs[32, "group-share"]["share.auto.offset.reset"] == "earliest"


def test_a_life_on_kafkas_directory(kafka_directory: Path) -> None:
    async def script() -> None:
        node = await start(kafka_directory, previous_broker_epoch=180)
        assert (node.epoch, node.cluster_id) == (3, "kbrokerFixtures43100-w")
        partition = node.image.partition("codec-none", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, 4)
        await as_future(node.channel.create_topics(topics("new")))
        image = node.image
        await as_future(node.log.snapshotter.write())
        await node.stop()
        assert replayed(kafka_directory, node.cluster_id) == image
        again = MetadataNode(kafka_directory)
        await again.start()
        assert again.image.topics == image.topics
        assert again.image.acls == image.acls
        assert again.image.scram_credentials == image.scram_credentials
        await again.stop()

    run(script)
