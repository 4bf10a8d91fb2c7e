"""Finding brokers, leaders and coordinators, and which errors are retried until when."""

from __future__ import annotations

import pickle

import pytest

from kbroker.client.cluster import TRANSACTION_COORDINATOR
from kbroker.model import TopicPartition
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.schema import Request
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_jobs.errors import JobError
from spark_jobs.wire.client import BlockingClient, ClusterAddress, NoBroker
from tests.spark.exactly_once.scripted_cluster import (
    HOST,
    PORT,
    FakeClock,
    FakeConnection,
    ScriptedCluster,
)


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster(t=2)


def client_at(
    cluster: ScriptedCluster, bootstrap: str, silent: frozenset[str] = frozenset()
) -> BlockingClient:
    """silent: hosts that do not answer until the timeout."""

    def connect(host: str, port: int, timeout_s: float) -> object:
        if host in silent:
            cluster.clock.sleep(timeout_s)
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: no answer in time")
        return cluster._connect(host, port, timeout_s)

    return BlockingClient(ClusterAddress(bootstrap), connect=connect, clock=cluster.clock)  # type: ignore[arg-type]


def test_any_bootstrap_server_will_do(cluster: ScriptedCluster) -> None:
    client = client_at(cluster, f"a:1,b:2,{HOST}:{PORT}", silent=frozenset("a"))
    assert client.partition_count("t") == 2
    assert cluster.clock.now - 100 < 5


def test_no_broker_answers_within_five_seconds(cluster: ScriptedCluster) -> None:
    client = client_at(cluster, "a:1,b:2,c:3", silent=frozenset("ab"))
    with pytest.raises(NoBroker) as caught:
        client.retry(lambda: client.partition_count("t"))
    assert 3 < cluster.clock.now - 100 <= 5
    assert str(caught.value) == (
        "no broker answers: a:1: no answer in time; b:2: no answer in time; c:3: nothing listens; "
        "check the bootstrap servers and that this machine can reach them"
    )


def test_a_cluster_that_was_reached_may_be_away_for_a_while(cluster: ScriptedCluster) -> None:
    client = cluster.client()
    client.partition_count("t")
    failures = [3]
    connect = client._connect

    def away(host: str, port: int, timeout_s: float) -> object:
        failures[0] -= 1
        if failures[0] >= 0:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "away")
        return connect(host, port, timeout_s)

    client.close()
    client._connect = away  # type: ignore[assignment]
    assert client.retry(lambda: client.partition_count("t")) == 2
    failures[0] = 10**9
    client.close()
    with pytest.raises(NoBroker):
        client.retry(lambda: client.partition_count("t"))
    assert 55 < cluster.clock.now - 100 < 65


def test_bootstrap_servers_that_are_none() -> None:
    with pytest.raises(JobError, match="is no broker address: write host:port"):
        BlockingClient(ClusterAddress("a:b:c"))


def test_advertised_addresses_that_cannot_be_reached(cluster: ScriptedCluster) -> None:
    client = client_at(cluster, "bootstrap:1", silent=frozenset())
    inner = client._connect

    def connect(host: str, port: int, timeout_s: float) -> object:
        if host == "bootstrap":
            return inner(HOST, PORT, timeout_s)
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: Connection refused")

    client._connect = connect  # type: ignore[assignment]
    with pytest.raises(KafkaError) as caught:
        client.retry(lambda: client.coordinator_connection(TRANSACTION_COORDINATOR, "x"))
    assert caught.value.code is ErrorCode.BROKER_NOT_AVAILABLE
    assert "advertises broker:9092, which this machine cannot reach" in caught.value.message
    assert "check advertised.listeners" in caught.value.message
    assert 4.5 < cluster.clock.now - 100 < 5.5


@pytest.fixture(params=[f"{HOST}:{PORT}", "alias:1"])
def new_client(request: pytest.FixtureRequest, cluster: ScriptedCluster) -> BlockingClient:
    """As each task has one. Bootstrap servers may be addresses that no broker advertises."""
    client = client_at(cluster, request.param)
    inner = client._connect

    def connect(host: str, port: int, timeout_s: float) -> object:
        address = (HOST, PORT) if host == "alias" else (host, port)
        return inner(*address, timeout_s)

    client._connect = connect  # type: ignore[assignment]
    return client


def test_a_leader_that_has_died(cluster: ScriptedCluster, new_client: BlockingClient) -> None:
    """For the session of a broker (9 s by default) the cluster names it although it is dead."""
    place = TopicPartition("t", 1)
    cluster.led_by_the_dead = {place}

    def elect(request: object) -> None:
        if cluster.clock.now > 109:
            cluster.led_by_the_dead = set()

    cluster.before = elect
    new_client.retry(lambda: new_client.node(new_client.leader(place)))
    assert 9 < cluster.clock.now - 100 < 12


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_leader_that_hangs(cluster: ScriptedCluster, is_connected: bool) -> None:
    """It accepts connections and answers nothing; its partitions move to another broker."""
    client = client_at(cluster, f"{HOST}:{PORT}")
    inner = client._connect
    place = TopicPartition("t", 1)
    cluster.led_by_the_dead = {place}

    def connect(host: str, port: int, timeout_s: float) -> object:
        if host == HOST:
            return inner(host, port, timeout_s)
        if is_connected:
            return HangingConnection(cluster)
        cluster.clock.sleep(timeout_s)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no response to API_VERSIONS within 5 s")

    def attempt() -> int:
        connection = client.node(client.leader(place))
        return client.exchange(connection, MetadataRequest(), MetadataResponse).error_code

    def elect(request: object) -> None:
        if cluster.clock.now > 104:
            cluster.led_by_the_dead = set()

    client._connect = connect  # type: ignore[assignment]
    cluster.before = elect
    assert client.retry(attempt) == 0
    assert cluster.clock.now - 100 < (36 if is_connected else 6)


class HangingConnection(FakeConnection):
    """No request is answered."""

    def send(self, request: Request, version: int) -> int:
        self._cluster.clock.sleep(35)
        self.close()
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no response within 35 s")


def test_a_coordinator_that_has_died(cluster: ScriptedCluster, new_client: BlockingClient) -> None:
    cluster.is_coordinator_dead = True

    def elect(request: object) -> None:
        cluster.is_coordinator_dead = cluster.clock.now < 109

    cluster.before = elect
    new_client.retry(lambda: new_client.coordinator_connection(TRANSACTION_COORDINATOR, "x"))
    assert 9 < cluster.clock.now - 100 < 12


def test_leaders(cluster: ScriptedCluster) -> None:
    client = cluster.client()
    assert client.leader(TopicPartition("t", 1)) == 1
    assert client.leader(TopicPartition("t", 0)) == 1
    assert cluster.requests == [ApiKey.METADATA]
    for missing in (TopicPartition("t", 2), TopicPartition("u", 0)):
        with pytest.raises(KafkaError) as caught:
            client.leader(missing)
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    client.forget_leaders()
    client.leader(TopicPartition("t", 0))
    assert cluster.requests.count(ApiKey.METADATA) == 4


def test_a_coordinator_is_looked_up_again_when_it_is_forgotten(cluster: ScriptedCluster) -> None:
    client = cluster.client()
    for _ in range(2):
        client.coordinator_connection(TRANSACTION_COORDINATOR, "x")
    assert cluster.requests.count(ApiKey.FIND_COORDINATOR) == 1
    client.forget_coordinator(TRANSACTION_COORDINATOR, "x")
    client.coordinator_connection(TRANSACTION_COORDINATOR, "x")
    assert cluster.requests.count(ApiKey.FIND_COORDINATOR) == 2


def test_retries_end_with_the_error(cluster: ScriptedCluster) -> None:
    client = cluster.client()
    attempts = []

    def fail(code: ErrorCode) -> None:
        attempts.append(code)
        raise KafkaError(code)

    with pytest.raises(KafkaError):
        client.retry(lambda: fail(ErrorCode.INVALID_REQUEST))
    assert len(attempts) == 1
    with pytest.raises(KafkaError):
        client.retry(lambda: fail(ErrorCode.REQUEST_TIMED_OUT), timeout_s=2)
    assert 5 < len(attempts) < 15
    assert 1 < cluster.clock.now - 100 <= 2
    with pytest.raises(KafkaError):
        client.retry(lambda: fail(ErrorCode.REQUEST_TIMED_OUT), is_final=lambda error: True)


def test_addresses_go_to_the_tasks() -> None:
    address = ClusterAddress("a:1", retry_timeout_s=3.0)
    assert pickle.loads(pickle.dumps(address)) == address


def test_the_clock_of_this_machine() -> None:
    from spark_jobs.wire.client import SystemClock

    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0)
    assert clock.monotonic() >= before
    assert FakeClock().monotonic() == 100.0
