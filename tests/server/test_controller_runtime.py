"""The controller at work on a real metadata log, also on one that Apache Kafka 4.3.1 wrote."""

from __future__ import annotations

import asyncio
import tarfile
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.broker.controller_runtime import ControllerRuntime, as_future
from kbroker.broker.producer_ids import ProducerIdManager
from kbroker.metadata.delta import MetadataDelta
from kbroker.metadata.image import Endpoint, MetadataImage
from kbroker.metadata.records import decode_record, encode_record
from kbroker.model import StartupError, uuid_to_string
from kbroker.ports import Deferred, TimerHandle
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata_records import (
    BeginTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
)
from kbroker.protocol.messages.topics import CreateTopicsRequest, DeleteTopicsRequest
from kbroker.protocol.records import iter_batches, iter_records
from kbroker.quorum.format import ensure_formatted
from kbroker.quorum.snapshots import read_snapshot
from kbroker.settings.broker import BrokerConfig

KAFKA_DATA = Path(__file__).parent.parent / "data" / "kafka-4.3.1"
LOG = "__cluster_metadata-0/00000000000000000000.log"
ENDPOINT = Endpoint("PLAINTEXT", "localhost", 9092)
CreatableTopic = CreateTopicsRequest.CreatableTopic


class StillTimers:
    """Time that only a test moves."""

    def __init__(self) -> None:
        self.time_ms = 1_795_250_000_000  # within the retention of Kafka's own snapshots

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> TimerHandle:
        raise AssertionError("the controller needs no timers")


TIMERS = StillTimers()


def make(directory: Path, **settings: str) -> ControllerRuntime:
    properties = {key.replace("_", "."): value for key, value in settings.items()}
    config = BrokerConfig.from_properties(
        {"log.dirs": str(directory), "node.id": "1", **properties}
    )
    meta = ensure_formatted(config, Random(1))
    return ControllerRuntime(config, properties=meta, timers=TIMERS, random=Random(2))


async def start(
    directory: Path, *, previous_broker_epoch: int = -1, **settings: str
) -> ControllerRuntime:
    runtime = make(directory, **settings)
    await runtime.start()
    runtime.register_broker([ENDPOINT], previous_broker_epoch=previous_broker_epoch)
    await as_future(runtime.unfence_broker())
    return runtime


def run(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(script())


def topics(*names: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names
        ]
    )


def replayed(directory: Path, cluster_id: str) -> MetadataImage:
    """The image that the log file alone gives."""
    delta = MetadataDelta(MetadataImage(cluster_id=cluster_id))
    offset = epoch = 0
    data = (directory / LOG).read_bytes()
    for position, header in iter_batches(data):
        offset, epoch = header.last_offset, header.partition_leader_epoch
        if not header.is_control:
            batch = data[position : position + header.size_bytes]
            for record in iter_records(batch):
                delta.replay(decode_record(record.value or b""))
    return delta.apply(offset=offset, epoch=epoch)


def test_a_new_cluster(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = await start(tmp_path)
        assert runtime.finalized_features() == {
            "metadata.version": 30,
            "kraft.version": 1,
            "group.version": 1,
            "transaction.version": 2,
            "share.version": 1,
            "streams.version": 1,
            "eligible.leader.replicas.version": 1,
        }
        image = runtime.image
        assert (runtime.epoch, image.epoch, image.cluster_id) == (1, 1, runtime.cluster_id)
        assert image.brokers[1].endpoints == {"PLAINTEXT": ENDPOINT}
        assert not image.brokers[1].fenced
        assert runtime.broker_epoch == image.brokers[1].epoch
        assert image.broker_configs(None) == {"min.insync.replicas": "1"}
        assert set(image.controllers) == {1}
        await runtime.stop()
        assert replayed(tmp_path, image.cluster_id) == image

    run(script)


def test_topics_are_published_before_the_answer_and_survive_a_restart(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = await start(tmp_path)
        published: list[MetadataImage] = []
        runtime.on_image(lambda old, new: published.append(new))
        deferred = runtime.create_topics(topics("a", "b", partitions=3))
        assert "a" not in runtime.image.topics
        deferred.on_done(lambda response: published.append(MetadataImage(cluster_id="answer")))
        response = await as_future(deferred)
        assert [t.error_code for t in response.topics] == [0, 0]
        assert [image.cluster_id for image in published[-2:]] == [runtime.cluster_id, "answer"]
        request = DeleteTopicsRequest(topic_names=["a"])
        await as_future(runtime.delete_topics(request, api_version=5))
        before = runtime.image
        await runtime.stop()
        again = make(tmp_path)
        await again.start()
        assert again.epoch == 2
        assert again.image.topics == before.topics
        assert again.image.brokers == before.brokers
        await again.stop()

    run(script)


def test_the_same_topic_asked_for_twice_at_once_is_made_once(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = await start(tmp_path)
        both = [runtime.create_topics(topics("t")) for _ in range(2)]
        ensured = [runtime.ensure_topic("u") for _ in range(3)]
        internal = [runtime.ensure_internal_topic("__consumer_offsets") for _ in range(3)]
        assert not any(deferred.done for deferred in [*both, *ensured, *internal])
        codes = [(await as_future(deferred)).topics[0].error_code for deferred in both]
        assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
        for deferred in [*ensured, *internal]:
            assert await as_future(deferred) is ErrorCode.NONE
            assert "__consumer_offsets" in runtime.image.topics or deferred not in internal
        await runtime.stop()
        image = replayed(tmp_path, runtime.cluster_id)
        assert image == runtime.image
        assert sorted(image.topics) == ["__consumer_offsets", "t", "u"]

    run(script)


def test_an_answer_without_records_waits_for_what_was_proposed_before(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = await start(tmp_path)
        order: list[str] = []
        runtime.ensure_topic("t").on_done(lambda code: order.append("made"))
        runtime.ensure_topic("t").on_done(lambda code: order.append("there"))
        assert order == []
        await runtime.stop()
        assert order == ["made", "there"]

    run(script)


def test_nothing_is_taken_before_start_and_after_stop(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = make(tmp_path)
        with pytest.raises(KafkaError) as caught:
            runtime.create_topics(topics("t"))
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        await runtime.start()
        await runtime.stop()
        with pytest.raises(KafkaError):
            runtime.ensure_topic("t")

    run(script)


def test_a_controlled_stop_and_a_clean_start_bump_the_leader_epoch_twice(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = await start(tmp_path)
        await as_future(runtime.create_topics(topics("t")))
        await as_future(runtime.controlled_shutdown())
        partition = runtime.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.elr) == (-1, (1,))
        epoch = runtime.broker_epoch
        await runtime.stop()
        again = await start(tmp_path, previous_broker_epoch=epoch)
        partition = again.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, 2)
        assert partition.leader_recovery_state == 0
        assert again.broker_epoch > epoch
        await again.stop()

    run(script)


def test_snapshots_by_size_leave_the_image_as_it_is(tmp_path: Path) -> None:
    async def script() -> None:
        limit = {"metadata_log_max_record_bytes_between_snapshots": "1000"}
        runtime = await start(tmp_path, **limit)
        for index in range(30):
            await as_future(runtime.create_topics(topics(f"t{index}", partitions=2)))
            await asyncio.sleep(0)
        image = runtime.image
        await runtime.stop()
        snapshots = sorted((tmp_path / "__cluster_metadata-0").glob("*.checkpoint"))
        assert len(snapshots) > 2
        content = read_snapshot(snapshots[-1])
        assert content.configuration.kraft_version == 1
        again = make(tmp_path)
        await again.start()
        later = replace(again.image, offset=0, epoch=0, controllers={})
        assert later == replace(image, offset=0, epoch=0, controllers={})
        await again.stop()

    run(script)


def test_a_snapshot_is_due_after_the_interval(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = await start(tmp_path, metadata_log_max_snapshot_interval_ms="5000")
        folder = tmp_path / "__cluster_metadata-0"
        await as_future(runtime.ensure_topic("a"))
        assert len(list(folder.glob("*.checkpoint"))) == 1
        TIMERS.time_ms += 5000
        await as_future(runtime.ensure_topic("b"))
        await runtime.snapshot_idle()
        assert len(list(folder.glob("*.checkpoint"))) == 2
        await runtime.stop()

    run(script)


def test_an_unended_transaction_is_aborted_at_start(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = await start(tmp_path)
        begun = [
            BeginTransactionRecord(name="x"),
            FeatureLevelRecord(name="group.version", feature_level=0),
        ]
        runtime._driver.append([encode_record(record, 30) for record in begun])
        await runtime.stop()
        again = await start(tmp_path)
        assert again.image.features["group.version"] == 1
        await as_future(again.ensure_topic("t"))
        await again.stop()
        assert "t" in replayed(tmp_path, again.cluster_id).topics

    run(script)


def test_a_log_from_the_future_is_refused_in_one_line(tmp_path: Path) -> None:
    async def script() -> None:
        runtime = await start(tmp_path)
        newer = bytearray(encode_record(NoOpRecord(), 30))
        newer[1] = 99
        runtime._driver.append([bytes(newer)])
        await runtime.stop()
        with pytest.raises(StartupError, match="newer Kafka") as caught:
            await make(tmp_path).start()
        assert "\n" not in str(caught.value)

    run(script)


def test_producer_ids_are_handed_out_once(tmp_path: Path) -> None:
    async def life(count: int) -> list[int]:
        runtime = await start(tmp_path)
        manager = ProducerIdManager(runtime.allocate_producer_ids)
        ids = []
        for _ in range(count):
            given = manager.next_id()
            ids.append(await as_future(given) if isinstance(given, Deferred) else given)
        await runtime.stop()
        return ids

    async def script() -> None:
        ids = [*(await life(3)), *(await life(2500)), *(await life(1))]
        assert ids[:4] == [0, 1, 2, 1000]
        assert max(Counter(ids).values()) == 1

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
        runtime = make(kafka_directory)
        loaded: list[MetadataImage] = []
        runtime.on_image(lambda old, new: loaded.append(new))
        await runtime.start()
        assert replace(loaded[0], offset=0, epoch=0) == replace(whole, offset=0, epoch=0)
        await runtime.stop()

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
        runtime = await start(kafka_directory, previous_broker_epoch=180)
        assert (runtime.epoch, runtime.cluster_id) == (3, "kbrokerFixtures43100-w")
        partition = runtime.image.partition("codec-none", 0)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch) == (1, 4)
        await as_future(runtime.create_topics(topics("new")))
        image = runtime.image
        await runtime.write_snapshot()
        await runtime.stop()
        assert replayed(kafka_directory, runtime.cluster_id) == image
        again = make(kafka_directory)
        await again.start()
        assert again.image.topics == image.topics
        assert again.image.acls == image.acls
        assert again.image.scram_credentials == image.scram_credentials
        await again.stop()

    run(script)
