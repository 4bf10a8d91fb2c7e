"""What a start sees of a cluster, and how fast it says that there is none."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker.client import advertised
from kbroker.testing import EmbeddedBroker
from spark_jobs import cluster
from spark_jobs.cluster import ClusterView, Subscription, group_offsets, look
from spark_jobs.errors import JobError
from tests.clients.adapters import ConfluentAdapter, Sent

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def seen(broker: EmbeddedBroker, *topics: str) -> ClusterView:
    return look(broker.bootstrap_servers, Subscription(topics), "PLAINTEXT")


def fill(broker: EmbeddedBroker, topic: str, records: int) -> None:
    sent = [Sent(None, b"v" * 100, (), 1_700_000_000_000, n % 2) for n in range(records)]
    ConfluentAdapter(broker.bootstrap_servers).produce(topic, sent, codec="none", idempotent=True)


def test_topics_with_ids_and_offsets(kafka_broker: EmbeddedBroker) -> None:
    kafka_broker.create_topic("seen-a", partitions=2)
    kafka_broker.create_topic("seen-b")
    fill(kafka_broker, "seen-a", 9)
    view = seen(kafka_broker, "seen-a", "seen-b")
    assert view.is_known
    facts = view.topics["seen-a"]
    assert (facts.earliest, facts.latest) == ({0: 0, 1: 0}, {0: 5, 1: 4})
    assert len(facts.topic_id) == 32 and facts.topic_id != view.topics["seen-b"].topic_id
    assert view.topics["seen-b"].latest == {0: 0}
    assert view.record_bytes is not None and 100 < view.record_bytes < 400
    assert seen(kafka_broker, "seen-b").record_bytes is None


def test_a_pattern_matches_whole_names(kafka_broker: EmbeddedBroker) -> None:
    for name in ("pat-1", "pat-2", "xpat-1"):
        kafka_broker.create_topic(name)
    view = look(kafka_broker.bootstrap_servers, Subscription(pattern="pat-."), "PLAINTEXT")
    assert sorted(view.topics) == ["pat-1", "pat-2"]
    with pytest.raises(JobError, match=r"--subscribePattern no-such\.\* matches none of the \d+"):
        look(kafka_broker.bootstrap_servers, Subscription(pattern="no-such.*"), "PLAINTEXT")
    with pytest.raises(JobError, match=r"--subscribePattern \(: "):
        look(kafka_broker.bootstrap_servers, Subscription(pattern="("), "PLAINTEXT")


def test_a_topic_that_is_not_there(kafka_broker: EmbeddedBroker, kafka_topic: str) -> None:
    with pytest.raises(JobError, match=r"^topic not-there does not exist$"):
        seen(kafka_broker, kafka_topic, "not-there")


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL"])
def test_a_broker_that_is_down(closed_port: int, protocol: str) -> None:
    address = f"127.0.0.1:{closed_port}"
    with pytest.raises(JobError, match=f"^no broker answers: {address}: Connection refused$"):
        look(address, Subscription(("t",)), protocol)


def test_in_a_notebook(closed_port: int) -> None:
    """Whose thread runs an event loop: the job's own must not be begun in it."""

    async def cell() -> None:
        look(f"127.0.0.1:{closed_port}", Subscription(("t",)), "PLAINTEXT")

    with pytest.raises(JobError, match=r"^no broker answers: "):
        asyncio.run(cell())


def test_what_accepts_connections_and_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(JobError, match=r"accepts connections, but .*does it expect TLS"):
            look(address, Subscription(("t",)), "PLAINTEXT")


def test_an_address_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accept queue that is full drops connections as a firewall does."""
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.5)
    with ExitStack() as sockets:
        full, *waiting = [sockets.enter_context(socket.socket()) for _ in range(4)]
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        began_s = time.monotonic()
        with pytest.raises(JobError, match=r"no answer within 0\.5 s"):
            look(f"127.0.0.1:{address[1]}", Subscription(("t",)), "PLAINTEXT")
        assert time.monotonic() - began_s < 5
    assert cluster.LOOK_TIMEOUT_S > cluster.ANSWER_TIMEOUT_S


def test_one_address_of_several_is_enough(
    kafka_broker: EmbeddedBroker, kafka_topic: str, closed_port: int
) -> None:
    servers = f"127.0.0.1:{closed_port},{kafka_broker.bootstrap_servers}"
    assert look(servers, Subscription((kafka_topic,)), "PLAINTEXT").is_known


@pytest.mark.parametrize("host", ["kafka..svc", "k" * 64 + ".svc"])
def test_what_is_no_host_name(host: str) -> None:
    with pytest.raises(JobError, match=f"^no broker answers: {host}:9092: this is no host name"):
        look(f"{host}:9092", Subscription(("t",)), "PLAINTEXT")


def test_with_tls_only_a_socket_is_tried(kafka_broker: EmbeddedBroker) -> None:
    view = look(kafka_broker.bootstrap_servers, Subscription(("any",)), "SASL_SSL")
    assert (view.is_known, view.unknown_because) == (False, "security.protocol is SASL_SSL")


def test_an_address_that_is_none() -> None:
    with pytest.raises(JobError, match="'a:b:c' is no broker address"):
        look("a:b:c", Subscription(("t",)), "PLAINTEXT")


def test_an_advertised_address_that_cannot_be_reached(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advertised, "ADVERTISED_GRACE_S", 0.0)
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{closed_port}"}
    with EmbeddedBroker(settings) as broker:
        broker.create_topic("t")
        with pytest.raises(JobError, match=r"advertises 127.0.0.1:\d+, which this machine cannot"):
            seen(broker, "t")


def test_offsets_of_a_group(kafka_broker: EmbeddedBroker) -> None:
    from confluent_kafka import Consumer, TopicPartition

    kafka_broker.create_topic("grouped", partitions=2)
    fill(kafka_broker, "grouped", 10)
    servers = kafka_broker.bootstrap_servers
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "resume", "enable.auto.commit": False}
    )
    consumer.commit(offsets=[TopicPartition("grouped", 1, 3)], asynchronous=False)
    consumer.close()
    topics = seen(kafka_broker, "grouped").topics
    assert group_offsets(servers, "resume", topics) == {"grouped": {1: 3}}
    with pytest.raises(JobError, match="group nobody has committed no offsets of grouped"):
        group_offsets(servers, "nobody", topics)
