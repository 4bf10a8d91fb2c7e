"""Metrics, health and readiness of real nodes: over a start, a stop, a failure, on controllers, and
with brokers that come and go.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.broker.lifecycle import LifecycleCore
from kbroker.client.connection import BrokerConnection
from kbroker.coordinator.runtime.host import HostStatus
from kbroker.log.manager import LogManager
from kbroker.model import StartupError
from kbroker.node.node import Broker
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse
from kbroker.protocol.messages.quorum import DescribeQuorumRequest
from kbroker.server.requests import Outcome, RequestContext
from kbroker.testing.embedded import EmbeddedBroker
from scripts.ports import free_port
from tests.e2e.wire import call
from tests.node.cluster import Cluster, create_topic, produce, running, until
from tests.server.monitoring.test_collection import Samples, commit_when_loaded, connect, samples

LISTENER = "kbroker.metrics.listener"
METRICS = {LISTENER: "127.0.0.1:0"}


def get(port: int, path: str) -> tuple[int, str]:
    """The status and the body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def failed(text: str) -> set[str]:
    """The names of the checks that failed."""
    lines = [line for line in text.splitlines() if line.startswith("[-] ")]
    return {line[4:].partition(":")[0] for line in lines}


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(METRICS) as one:
        yield one


def port_of(broker: EmbeddedBroker) -> int:
    port = broker.call(lambda one: one.metrics_port)
    assert port is not None
    return port


def test_a_start_is_healthy_and_not_ready_until_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As during the recovery of large logs."""
    go_on, began = threading.Event(), threading.Event()
    load = LogManager.load

    def slow_load(*arguments: object, **options: object) -> None:
        began.set()
        assert go_on.wait(30)
        load(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LogManager, "load", slow_load)
    port = free_port()
    broker = EmbeddedBroker({LISTENER: f"127.0.0.1:{port}"})
    starter = threading.Thread(target=broker.start)
    starter.start()
    try:
        assert began.wait(30)
        assert get(port, "/healthz")[0] == 200
        status, text = get(port, "/readyz")
        assert status == 503
        assert failed(text) == {"unfenced"}, "registered, and its logs are recovered"
        found = samples(get(port, "/metrics")[1])
        assert found["kafka_server_raftmetrics_current_state", "leader"] == 1
        assert ("kafka_server_kafkaserver_brokerstate",) not in found
    finally:
        go_on.set()
        starter.join(30)
    try:
        assert get(port, "/readyz")[0] == 200
    finally:
        broker.stop()


def test_a_node_without_a_log_directory_does_not_work(broker: EmbeddedBroker) -> None:
    port = port_of(broker)
    (directory,) = broker.call(lambda one: one.services.replicas.logs.all_directories)
    broker.call(lambda one: setattr(directory, "failure", OSError("gone")))
    try:
        for path in ("/healthz", "/readyz"):
            status, text = get(port, path)
            assert status == 503
            assert "[-] log-directories: 0 of 1 online" in text
    finally:
        broker.call(lambda one: setattr(directory, "failure", None))
    assert get(port, "/healthz")[0] == 200


def test_coordinators_that_load_are_not_ready(broker: EmbeddedBroker) -> None:
    port = port_of(broker)
    broker.create_topic("prices", partitions=2)
    with connect(broker) as connection:
        commit_when_loaded(connection, "billing", 1)

    def host(status: HostStatus) -> Callable[..., None]:
        def change(one: object) -> None:
            first = next(iter(one.services.groups.runtime.hosts()))  # type: ignore[attr-defined]
            first.status = status

        return change

    for status in (HostStatus.LOADING, HostStatus.FAILED):
        broker.call(host(status))
        code, text = get(port, "/readyz")
        assert (code, failed(text)) == (503, {"coordinators"})
        assert f"1 of __consumer_offsets {status.value}" in text
    broker.call(host(HostStatus.ACTIVE))
    assert get(port, "/readyz")[0] == 200


def test_a_controlled_shutdown_is_not_ready(broker: EmbeddedBroker) -> None:
    port = port_of(broker)
    core = broker.call(lambda one: one._role.lifecycle._core)  # type: ignore[union-attr]
    assert isinstance(core, LifecycleCore)
    before = core.state
    broker.call(lambda one: setattr(core, "state", type(before).PENDING_CONTROLLED_SHUTDOWN))
    try:
        status, text = get(port, "/readyz")
        assert (status, failed(text)) == (503, {"registered"})
        assert "pending controlled shutdown" in text
    finally:
        broker.call(lambda one: setattr(core, "state", before))


def test_the_page_names_the_node(broker: EmbeddedBroker) -> None:
    status, page = get(port_of(broker), "/")
    assert status == 200
    assert broker.call(lambda one: one.metadata.image.cluster_id) in page
    assert "broker, controller" in page


def test_errors_of_requests_that_the_controller_answers(broker: EmbeddedBroker) -> None:
    """The broker hands them to its controller: they are counted once, as each other error."""

    def fail(context: RequestContext, request: object) -> Outcome:
        raise RuntimeError("broken for the test")

    def break_controller(running: Broker) -> None:
        assert running._controllers is not None
        running._controllers.forwarded.interceptors[ApiKey.DESCRIBE_QUORUM] = fail

    broker.call(break_controller)
    with connect(broker) as connection:
        call(connection, UnregisterBrokerRequest(broker_id=99), 0)
        call(connection, DescribeQuorumRequest(), 0)
    found = samples(get(port_of(broker), "/metrics")[1])
    errors, requests = "kbroker_request_errors_total", "kafka_network_requestmetrics_requests_total"
    assert found[errors, "BROKER_ID_NOT_REGISTERED", "UnregisterBroker"] == 1
    assert found[errors, "UNKNOWN_SERVER_ERROR", "DescribeQuorum"] == 1
    assert found["kbroker_unexpected_errors_total",] == 1
    assert found[requests, "UnregisterBroker"] == found[requests, "DescribeQuorum"] == 1


def test_after_a_stop_the_port_is_free() -> None:
    port = free_port()
    for _ in range(2):
        with EmbeddedBroker({LISTENER: f"127.0.0.1:{port}"}):
            assert get(port, "/healthz")[0] == 200
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_that_is_taken_stops_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError, match=f"{LISTENER}={address}"):
            EmbeddedBroker({LISTENER: address}).start()


def _silent_ms(node: Broker) -> int:
    assert node._role is not None and node._role.lifecycle is not None
    return node._role.lifecycle.silent_ms


async def ask(cluster: Cluster, number: int, path: str) -> tuple[int, str]:
    port = cluster.nodes[number].metrics_port
    assert port is not None
    return await asyncio.to_thread(get, port, path)


async def scrape(cluster: Cluster, number: int) -> Samples:
    return samples((await ask(cluster, number, "/metrics"))[1])


def test_a_cluster(tmp_path: Path) -> None:
    """Controllers tell of the cluster and the quorum, brokers of their replicas; a fenced broker
    and one without controllers are not ready.
    """
    roles = {1: "controller", 2: "broker", 3: "broker"}

    async def script() -> None:
        cluster = Cluster(tmp_path, roles, settings={**METRICS, "replica.lag.time.max.ms": "1000"})
        async with running(cluster):
            async with cluster.client(2) as client:
                await create_topic(client, "orders", partitions=2, replication_factor=2)
                await produce(client, "orders", 50)
            controller, broker = await scrape(cluster, 1), await scrape(cluster, 2)
            assert controller["kafka_server_raftmetrics_current_state", "leader"] == 1
            assert broker["kafka_server_raftmetrics_current_state", "observer"] == 1
            assert controller["kafka_controller_kafkacontroller_activebrokercount",] == 2
            assert ("kafka_controller_kafkacontroller_activebrokercount",) not in broker
            assert ("kafka_server_replicamanager_partitioncount",) not in controller
            assert broker["kafka_server_replicamanager_partitioncount",] == 2
            assert controller["kafka_network_requestmetrics_requests_total", "BrokerHeartbeat"] > 0
            assert [(await ask(cluster, number, "/readyz"))[0] for number in roles] == [200] * 3
            assert "unfenced" not in (await ask(cluster, 1, "/readyz"))[1]
            await _replication(cluster)
            await _refused_by_the_controller(cluster)
            await cluster.stop(3)
            await until(lambda: not cluster.nodes[2].metadata.image.is_active(3))
            await _counted_without(cluster)
            cluster.kill(1)
            await until(lambda: _silent_ms(cluster.nodes[2]) > 1500)
            assert (await ask(cluster, 2, "/healthz"))[0] == 200
            assert "registered" in failed((await ask(cluster, 2, "/readyz"))[1])
            cluster.nodes.pop(2).kill()

    asyncio.run(script())


async def _replication(cluster: Cluster) -> None:
    """The followers have the records of the leaders, which counted them."""
    traffic = "kafka_server_brokertopicmetrics"
    async with asyncio.timeout(30):
        while True:
            found = [await scrape(cluster, number) for number in (2, 3)]
            sent = sum(each[f"{traffic}_replicationbytesout_total",] for each in found)
            taken = sum(each[f"{traffic}_replicationbytesin_total",] for each in found)
            written = sum(each[f"{traffic}_bytesin_total", "orders"] for each in found)
            if sent == taken == written > 0:
                break
            await asyncio.sleep(0.05)
    assert all(each[f"{traffic}_bytesout_total",] == 0 for each in found)
    led = sum(each["kafka_server_replicamanager_leadercount",] for each in found)
    assert led == 2


async def _refused_by_the_controller(cluster: Cluster) -> None:
    """A request that a broker forwards is counted by the controller that refuses it."""
    port = cluster.client_ports[2]
    async with await BrokerConnection.connect("127.0.0.1", port) as connection:
        await connection.request(UnregisterBrokerRequest(broker_id=99), UnregisterBrokerResponse)
    refused = "kbroker_request_errors_total", "BROKER_ID_NOT_REGISTERED", "UnregisterBroker"
    assert (await scrape(cluster, 1))[refused] == 1
    assert refused not in await scrape(cluster, 2)


async def _counted_without(cluster: Cluster) -> None:
    """What the remaining broker and the controller say of a broker that has left."""
    async with asyncio.timeout(30):
        while True:
            found = await scrape(cluster, 2)
            if found["kafka_server_replicamanager_underreplicatedpartitions",] == 2:
                break
            await asyncio.sleep(0.05)
    assert found["kafka_server_replicamanager_leadercount",] == 2
    assert found["kafka_cluster_partition_insyncreplicascount", "0", "orders"] == 1
    assert found["kafka_cluster_partition_underreplicated", "0", "orders"] == 1
    controller = await scrape(cluster, 1)
    assert controller["kafka_controller_kafkacontroller_fencedbrokercount",] == 1


def test_every_line_of_the_log_may_be_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kbroker", "serve", "--log-format", "json"]
    for override in (f"log.dirs={tmp_path / 'data'}", "listeners=PLAINTEXT://127.0.0.1:0"):
        command += ["--override", override]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    assert process.stderr is not None
    lines = []
    try:
        for line in process.stderr:
            lines.append(json.loads(line))
            if "listening on PLAINTEXT://127.0.0.1:" in lines[-1]["message"]:
                break
        process.terminate()
        out, rest = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    lines += [json.loads(line) for line in rest.splitlines()]
    assert process.returncode == 0
    assert out == ""
    assert {"time", "level", "node", "logger", "message"} == set().union(*lines)
    assert lines[-1]["message"] == "stopped"
    assert {line["node"] for line in lines} == {1}


def test_a_start_that_fails_is_a_line_of_json_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "kbroker", "serve", "--log-format=json"]
        command += ["-o", f"log.dirs={tmp_path / 'data'}", "-o", f"listeners={address}"]
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=dict(os.environ)
        )
    lines = [json.loads(line) for line in run.stderr.splitlines()]
    assert run.returncode == 1
    assert lines[-1]["level"] == "CRITICAL" and address in lines[-1]["message"]
