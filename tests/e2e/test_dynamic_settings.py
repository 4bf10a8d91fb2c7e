"""Settings that are altered while a broker runs do what they say, to clients of librdkafka and to
plain sockets, and still do after kill -9. Every key has a row in `tests/node/test_dynamic_keys.py`,
which looks inside; this looks from outside.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.protocol.messages.admin.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kbroker.settings.tables.keys import ResourceType
from kbroker.testing.process import BrokerProcess
from scripts.ports import free_port
from tests.clients.adapters import wait_until
from tests.e2e.wire import call

pytestmark = [pytest.mark.clients, pytest.mark.timeout(120)]

SET, DELETE = 0, 1
ALL_BROKERS = ""
WAIT_S = 20.0
LOG_APPEND_TIME = 2


class Scene:
    """A broker with two log directories, and what a test does with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.created_ms = int(time.time() * 1000) - 3_600_000  # of records, an hour ago
        self.listener = f"PLAINTEXT://127.0.0.1:{self.port}"
        overrides = {
            "log.dirs": f"{folder / 'one'},{folder / 'two'}",
            "listeners": self.listener,
            "log.retention.check.interval.ms": "500",
            "log.initial.task.delay.ms": "100",
        }
        self.broker = BrokerProcess(folder / "one", overrides=overrides)

    def alter(self, broker: str, **values: str | None) -> None:
        """Settings with `_` for `.`; None deletes one."""
        kind = IncrementalAlterConfigsRequest
        configs = [
            kind.AlterableConfig(
                name=name.replace("_", "."),
                config_operation=DELETE if value is None else SET,
                value=value,
            )
            for name, value in values.items()
        ]
        resource = kind.AlterConfigsResource(
            resource_type=ResourceType.BROKER, resource_name=broker, configs=configs
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            answer = call(connection, kind(resources=[resource]), 1)
        assert isinstance(answer, IncrementalAlterConfigsResponse)
        assert [each.error_code for each in answer.responses] == [0], answer

    def create(self, topic: str) -> None:
        """With four partitions."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(WAIT_S)

    def produce(self, topic: str, size: int) -> int | None:
        """A record that cannot be compressed much, to partition 0; the error, if it is refused."""
        errors: list[KafkaError] = []
        settings = {"message.max.bytes": 5_000_000, "log_level": 0}
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, **settings})
        producer.produce(
            topic,
            os.urandom(size),
            partition=0,
            timestamp=self.created_ms,
            on_delivery=lambda error, message: errors.append(error) if error else None,
        )
        assert producer.flush(WAIT_S) == 0
        return errors[0].code() if errors else None

    def newest(self, topic: str) -> Message:
        """The last record of partition 0."""
        settings = {"group.id": "unused", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap_servers, **settings})
        partition = TopicPartition(topic, 0)
        _, end = consumer.get_watermark_offsets(partition, WAIT_S)
        consumer.assign([TopicPartition(topic, 0, end - 1)])
        try:
            message = consumer.poll(WAIT_S)
        finally:
            consumer.close()
        assert message is not None and message.error() is None
        return message

    def segments(self, topic: str) -> set[str]:
        """The log files of partition 0."""
        return {path.name for path in self.folder.glob(f"*/{topic}-0/*.log")}

    def directories(self, topic: str) -> set[str]:
        """The log directories that have its partitions."""
        return {path.parent.name for path in self.folder.glob(f"*/{topic}-?")}

    def held_open(self, count: int) -> int:
        """How many of so many connections the broker keeps."""
        with ExitStack() as stack:
            opened = [
                stack.enter_context(socket.create_connection(("127.0.0.1", self.port), WAIT_S))
                for _ in range(count)
            ]
            kept = 0
            for connection in opened:
                connection.settimeout(0.1)
                try:
                    assert connection.recv(1) == b""
                except TimeoutError:
                    kept += 1
                except ConnectionResetError:
                    pass
            return kept


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
    except OSError:
        return False
    return True


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    with made.broker:
        yield made


def kill_and_start(scene: Scene) -> None:
    scene.broker.kill()
    scene.broker.start()


def test_settings_of_records_and_logs(scene: Scene) -> None:
    scene.create("t")
    scene.alter(ALL_BROKERS, message_max_bytes="1000")
    assert scene.produce("t", 2000) == KafkaError.MSG_SIZE_TOO_LARGE
    scene.alter(ALL_BROKERS, message_max_bytes=None)
    assert scene.produce("t", 2000) is None
    assert scene.newest("t").timestamp()[1] == scene.created_ms
    scene.alter(ALL_BROKERS, log_message_timestamp_type="LogAppendTime")
    assert scene.produce("t", 2000) is None
    assert scene.newest("t").timestamp()[0] == LOG_APPEND_TIME
    assert len(scene.segments("t")) == 1
    scene.alter(ALL_BROKERS, log_segment_bytes=str(1 << 20))
    for _ in range(3):
        assert scene.produce("t", 700_000) is None
    before = scene.segments("t")
    assert len(before) == 3
    kill_and_start(scene)
    assert scene.produce("t", 2000) is None
    assert scene.newest("t").timestamp()[0] == LOG_APPEND_TIME
    assert scene.produce("t", 700_000) is None
    assert len(scene.segments("t")) > 3
    scene.alter(ALL_BROKERS, log_retention_ms="1", log_segment_delete_delay_ms="0")
    wait_until(lambda: not scene.segments("t") & before, WAIT_S, "retention")


def test_settings_of_connections_and_listeners(scene: Scene) -> None:
    assert scene.held_open(12) == 12
    scene.alter(ALL_BROKERS, max_connections_per_ip="8")
    assert 1 <= scene.held_open(12) <= 8
    other = free_port()
    scene.alter(
        "1",
        listeners=f"{scene.listener},EXTRA://127.0.0.1:{other}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT",
    )
    wait_until(lambda: accepts(other), WAIT_S, "the new listener")
    kill_and_start(scene)
    assert accepts(other)
    assert 1 <= scene.held_open(12) <= 8
    scene.alter(ALL_BROKERS, max_connections_per_ip=None)
    assert scene.held_open(12) == 12
    scene.alter("1", listeners=scene.listener)
    wait_until(lambda: not accepts(other), WAIT_S, "the listener is gone")


def test_a_cordoned_directory_gets_no_partitions(scene: Scene) -> None:
    scene.create("before")
    assert scene.directories("before") == {"one", "two"}
    scene.alter("1", cordoned_log_dirs=str(scene.folder / "one"))
    scene.create("cordoned")
    kill_and_start(scene)
    scene.create("later")
    assert scene.directories("cordoned") == scene.directories("later") == {"two"}
    scene.alter("1", cordoned_log_dirs=None)
    scene.create("after")
    assert "one" in scene.directories("after")
