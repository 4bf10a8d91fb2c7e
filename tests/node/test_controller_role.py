"""The controller role on a real metadata log."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.storage.files import LogDirectoryError
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.records import encode_record
from kbroker.node.loop.futures import as_future
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest
from kbroker.protocol.messages.stored.metadata_records import (
    BeginTransactionRecord,
    FeatureLevelRecord,
)
from tests.node.metadata_node import ENDPOINT, MetadataNode, replayed, run, start, topics


def test_a_new_cluster(tmp_path: Path) -> None:
    async def script() -> None:
        node = await start(tmp_path)
        assert node.cache.finalized_features() == {
            "metadata.version": 30,
            "kraft.version": 1,
            "group.version": 1,
            "transaction.version": 2,
            "share.version": 1,
            "streams.version": 1,
            "eligible.leader.replicas.version": 1,
        }
        image = node.image
        assert (node.epoch, image.epoch, image.cluster_id) == (1, 1, node.cluster_id)
        assert image.brokers[1].endpoints == {"PLAINTEXT": ENDPOINT}
        assert not image.brokers[1].fenced
        assert node.broker_epoch == image.brokers[1].epoch
        assert image.broker_configs(None) == {"min.insync.replicas": "1"}
        assert set(image.controllers) == {1}
        await node.stop()
        assert replayed(tmp_path, image.cluster_id) == image

    run(script)


def test_topics_are_published_before_the_answer_and_survive_a_restart(tmp_path: Path) -> None:
    async def script() -> None:
        node = await start(tmp_path)
        published: list[MetadataImage] = []
        node.log.loader.on_image(lambda old, new: published.append(new))
        deferred = node.channel.create_topics(topics("a", "b", partitions=3))
        assert "a" not in node.image.topics
        deferred.on_done(lambda response: published.append(MetadataImage(cluster_id="answer")))
        response = await as_future(deferred)
        assert [t.error_code for t in response.topics] == [0, 0]
        assert [image.cluster_id for image in published[-2:]] == [node.cluster_id, "answer"]
        request = DeleteTopicsRequest(topic_names=["a"])
        await as_future(node.channel.delete_topics(request, api_version=5))
        before = node.image
        await node.stop()
        again = MetadataNode(tmp_path)
        await again.start()
        assert again.epoch == 2
        assert again.image.topics == before.topics
        assert again.image.brokers == before.brokers
        await again.stop()

    run(script)


def test_the_same_topic_asked_for_twice_at_once_is_made_once(tmp_path: Path) -> None:
    async def script() -> None:
        node = await start(tmp_path)
        both = [node.channel.create_topics(topics("t")) for _ in range(2)]
        ensured = [node.channel.ensure_topic("u") for _ in range(3)]
        internal = [node.channel.ensure_internal_topic("__consumer_offsets") for _ in range(3)]
        assert not any(deferred.done for deferred in [*both, *ensured, *internal])
        codes = [(await as_future(deferred)).topics[0].error_code for deferred in both]
        assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
        for deferred in [*ensured, *internal]:
            assert await as_future(deferred) is ErrorCode.NONE
            assert "__consumer_offsets" in node.image.topics or deferred not in internal
        await node.stop()
        image = replayed(tmp_path, node.cluster_id)
        assert image == node.image
        assert sorted(image.topics) == ["__consumer_offsets", "t", "u"]

    run(script)


def test_an_answer_without_records_waits_for_what_was_proposed_before(tmp_path: Path) -> None:
    async def script() -> None:
        node = await start(tmp_path)
        order: list[str] = []
        node.channel.ensure_topic("t").on_done(lambda code: order.append("made"))
        node.channel.ensure_topic("t").on_done(lambda code: order.append("there"))
        assert order == []
        await node.stop()
        assert order == ["made", "there"]

    run(script)


def test_nothing_is_taken_before_start_and_after_stop(tmp_path: Path) -> None:
    async def script() -> None:
        node = MetadataNode(tmp_path)
        with pytest.raises(KafkaError) as caught:
            node.channel.create_topics(topics("t"))
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        await node.start()
        await node.stop()
        with pytest.raises(KafkaError):
            node.channel.ensure_topic("t")

    run(script)


def test_an_unended_transaction_is_aborted_at_start(tmp_path: Path) -> None:
    async def script() -> None:
        node = await start(tmp_path)
        begun = [
            BeginTransactionRecord(name="x"),
            FeatureLevelRecord(name="group.version", feature_level=0),
        ]
        node.log.driver.append([encode_record(record, 30) for record in begun])
        await node.stop()
        again = await start(tmp_path)
        assert again.image.features["group.version"] == 1
        await as_future(again.channel.ensure_topic("t"))
        await again.stop()
        assert "t" in replayed(tmp_path, again.cluster_id).topics

    run(script)


def test_a_disk_that_fails_ends_leadership_and_fails_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        node = await start(tmp_path)

        def fail(self: object) -> None:
            raise LogDirectoryError("x", "fsync", OSError(5, "input/output error"))

        monkeypatch.setattr("kbroker.log.storage.files.LogFile.sync", fail)
        created = node.channel.create_topics(topics("t"))
        unchanged = node.channel.ensure_topic("t")
        for waiting in (created, unchanged):
            with pytest.raises(KafkaError) as caught:
                await as_future(waiting)
            assert caught.value.code is ErrorCode.NOT_CONTROLLER
        assert not node.role.service.is_active
        assert "t" not in node.image.topics
        await node.stop()

    run(script)
