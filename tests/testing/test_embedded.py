"""EmbeddedBroker: life, folders, ports, topics, interception."""

from __future__ import annotations

import errno
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker.controller_channel import LocalControllerChannel
from kbroker.log.storage.files import LogDirectoryError
from kbroker.model import InvariantError, StartupError
from kbroker.node.node import Broker
from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.testing import EmbeddedBroker, EmbeddedBrokerFailed
from tests.e2e.wire import call
from tests.node.broken_disk import break_metadata_log


def topics_of(broker: EmbeddedBroker) -> set[str | None]:
    return {topic.name for topic in metadata(broker).topics}


def metadata(broker: EmbeddedBroker) -> MetadataResponse:
    with socket.create_connection((broker.host, broker.port), timeout=5) as connection:
        response = call(connection, MetadataRequest(topics=None), 4)
    assert isinstance(response, MetadataResponse)
    return response


def test_a_broker_for_the_length_of_a_block() -> None:
    with EmbeddedBroker() as broker:
        assert broker.create_topic("events", partitions=3) == "events"
        assert broker.bootstrap_servers == f"127.0.0.1:{broker.port}"
        response = metadata(broker)
        assert [(b.host, b.port) for b in response.brokers] == [("127.0.0.1", broker.port)]
        assert [len(topic.partitions) for topic in response.topics] == [3]
        folder = broker.data
        assert (folder / "events-2").is_dir()
    assert not broker.running
    assert not folder.exists()
    with pytest.raises(InvariantError):
        broker.call(lambda running: running)


def test_topics_outlive_restart_and_kill(tmp_path: Path) -> None:
    with EmbeddedBroker(data=tmp_path / "data") as broker:
        port = broker.port
        broker.create_topic("kept")
        broker.restart()
        assert (broker.port, topics_of(broker)) == (port, {"kept"})
        broker.kill()
        assert not broker.running
        broker.start()
        assert (broker.port, topics_of(broker)) == (port, {"kept"})
    assert (tmp_path / "data" / "kept-0").is_dir(), "a folder of the caller's stays"


def test_overrides_and_topic_errors() -> None:
    with EmbeddedBroker({"num.partitions": "4"}) as broker:
        broker.create_topic("wide", partitions=-1)
        assert len(metadata(broker).topics[0].partitions) == 4
        with pytest.raises(KafkaError) as error:
            broker.create_topic("wide")
        assert error.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with EmbeddedBroker(data=tmp_path) as first:
        with pytest.raises(StartupError, match="locked"):
            EmbeddedBroker(data=tmp_path).start()
        other = EmbeddedBroker({"listeners": f"PLAINTEXT://127.0.0.1:{first.port}"})
        with pytest.raises(StartupError, match="in use"):
            other.start()
        assert not other.running
        other.stop()
    with EmbeddedBroker(data=tmp_path):
        pass


def test_a_disk_that_fails_during_the_start_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.testing.embedded.TIMEOUT_SECONDS", 5.0)
    break_metadata_log(monkeypatch, tmp_path, after=4)
    broker = EmbeddedBroker()
    folder = broker.data
    with pytest.raises(StartupError, match="Input/output error"):
        broker.start()
    assert not broker.running
    assert not folder.exists()
    broker.stop()


def test_a_start_that_takes_too_long_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())

    def heartbeat(self: LocalControllerChannel, epoch: int, **wishes: bool) -> Deferred[None]:
        return Deferred()  # never answered

    with monkeypatch.context() as patch:
        patch.setattr("kbroker.testing.embedded.TIMEOUT_SECONDS", 1.0)
        patch.setattr(LocalControllerChannel, "heartbeat", heartbeat)
        with pytest.raises(TimeoutError):
            EmbeddedBroker(data=tmp_path).start()
    for thread in set(threading.enumerate()) - threads:  # a worker may just be ending
        thread.join(30)
        assert not thread.is_alive()
    with EmbeddedBroker(data=tmp_path) as broker:  # nothing is locked
        assert topics_of(broker) == set()


def test_requests_can_be_intercepted_also_over_a_restart() -> None:
    seen: list[int] = []

    def refuse(context: Any, request: MetadataRequest) -> MetadataResponse | None:
        seen.append(context.api_version)
        if len(seen) > 2:
            return None
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

    with EmbeddedBroker() as broker:
        end = broker.intercept(ApiKey.METADATA, refuse)
        assert metadata(broker).brokers == []
        broker.restart()
        assert metadata(broker).brokers == []
        assert len(metadata(broker).brokers) == 1
        end()
        metadata(broker)
    assert seen == [4, 4, 4]


def break_disk(broker: EmbeddedBroker) -> None:
    """The only log directory fails. Returns once the broker's thread has ended."""
    path = str(broker.data / "events-0" / "00000000000000000000.log")
    failure = LogDirectoryError(path, "write", OSError(errno.EIO, "Input/output error"))
    thread = broker._thread
    assert thread is not None
    broker.call(lambda running: running.services.replicas.logs.directory_failed(failure))
    thread.join(20)
    assert not broker.running


def test_a_broker_without_a_log_directory_ends_and_the_next_call_says_why() -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic("events")
        folder = broker.data
        break_disk(broker)
        with pytest.raises(ConnectionRefusedError):
            metadata(broker)
        with pytest.raises(EmbeddedBrokerFailed, match="Input/output error") as failed:
            broker.create_topic("more")
        assert isinstance(failed.value.__cause__, LogDirectoryError)
        with pytest.raises(InvariantError, match="not running"):  # it is said once
            broker.create_topic("more")
    assert not folder.exists()


def test_stop_says_it_if_no_call_has() -> None:
    broker = EmbeddedBroker().start()
    folder = broker.data
    break_disk(broker)
    with pytest.raises(EmbeddedBrokerFailed, match="Input/output error"):
        broker.stop()
    assert not folder.exists()
    broker.stop()
    with broker:
        assert topics_of(broker) == set()


@pytest.mark.parametrize("name", ["start", "restart", "kill"])
def test_no_other_call_conceals_it(name: str, tmp_path: Path) -> None:
    broker = EmbeddedBroker(data=tmp_path / "data").start()
    broker.create_topic("kept")
    break_disk(broker)
    with pytest.raises(EmbeddedBrokerFailed):
        getattr(broker, name)()
    with broker:
        assert topics_of(broker) == {"kept"}


def test_interception_says_it_too() -> None:
    with EmbeddedBroker() as broker:
        break_disk(broker)
        with pytest.raises(EmbeddedBrokerFailed):
            broker.intercept(ApiKey.METADATA, lambda context, request: None)


def test_an_error_of_the_block_stays_and_gets_a_note() -> None:
    with pytest.raises(ValueError, match="the test's own") as error, EmbeddedBroker() as broker:
        break_disk(broker)
        raise ValueError("the test's own")
    (note,) = error.value.__notes__
    assert "ended by itself" in note and "Input/output error" in note


def test_a_call_that_waits_ends_with_the_broker() -> None:
    never: Deferred[None] = Deferred()

    def fail_and_wait(running: Broker) -> Deferred[None]:
        running.fail(InvariantError("broken for the test"))
        return never

    with EmbeddedBroker() as broker, pytest.raises(EmbeddedBrokerFailed, match="broken for") as it:
        broker.wait(fail_and_wait)
    assert isinstance(it.value.__cause__, InvariantError)
