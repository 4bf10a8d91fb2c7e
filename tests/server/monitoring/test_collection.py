"""A scrape of a broker that was used: each family's numbers, its bounds and its order."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import islice

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import DeleteTopicsRequest
from kbroker.protocol.messages.coordinators.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
)
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.server.monitoring.exposition import MAX_LABEL_CHARS, STEP_ROWS
from kbroker.testing.embedded import EmbeddedBroker
from tests.e2e.wire import call

LISTENER = "kbroker.metrics.listener"
TRAFFIC = "kafka_server_brokertopicmetrics"
BATCH = build_batch([(1, b"key", b"value", []), (2, b"key", b"more", [])])

Samples = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({LISTENER: "127.0.0.1:0"}) as running:
        running.create_topic("prices", partitions=3)
        yield running


def scrape(broker: EmbeddedBroker) -> str:
    port = broker.call(lambda running: running.metrics_port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = page.read().decode()
    return text


def samples(text: str) -> Samples:
    """By name and label values, in the order of the labels' names."""
    found: Samples = {}
    names = []
    for family in text_string_to_metric_families(text):
        names.append(family.name)
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, "a series is told once"
            found[key] = sample.value
    assert len(names) == len(set(names)), "a family is told in one piece"
    return found


def connect(broker: EmbeddedBroker) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), timeout=20)


def produce(connection: socket.socket, topic: str, index: int) -> None:
    data = ProduceRequest.PartitionProduceData(index=index, records=BATCH)
    of_topic = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    call(connection, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[of_topic]), 9)


def commit(connection: socket.socket, group: str, offset: int) -> int:
    """Commit an offset of prices-1; returns the error code."""
    one = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=1, committed_offset=offset
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="prices", partitions=[one])
    response = call(connection, OffsetCommitRequest(group_id=group, topics=[topic]), 7)
    code: int = response.topics[0].partitions[0].error_code  # type: ignore[attr-defined]
    return code


def commit_when_loaded(connection: socket.socket, group: str, offset: int) -> None:
    deadline = time.monotonic() + 20
    call(connection, FindCoordinatorRequest(key=group, key_type=0), 3)  # which makes the topic
    while code := commit(connection, group, offset):
        assert ErrorCode(code).retriable and time.monotonic() < deadline
        time.sleep(0.05)


def test_a_broker_that_was_used(broker: EmbeddedBroker) -> None:
    before = samples(scrape(broker))
    wanted = FetchRequest.FetchPartition(partition=1, partition_max_bytes=1 << 20)
    fetch = FetchRequest(
        max_wait_ms=0, topics=[FetchRequest.FetchTopic(topic="prices", partitions=[wanted])]
    )
    with connect(broker) as connection:
        produce(connection, "prices", 1)
        call(connection, fetch, 11)
        call(connection, fetch, 11)
        after = samples(scrape(broker))

    def gained(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    for topic in ((), ("prices",)):
        assert gained(f"{TRAFFIC}_bytesin_total", *topic) == len(BATCH)
        assert gained(f"{TRAFFIC}_messagesin_total", *topic) == 2
        assert gained(f"{TRAFFIC}_bytesout_total", *topic) == 2 * len(BATCH)
        assert gained(f"{TRAFFIC}_totalproducerequests_total", *topic) == 1
        assert gained(f"{TRAFFIC}_failedproducerequests_total", *topic) == 0
    assert gained(f"{TRAFFIC}_replicationbytesout_total") == 0
    assert gained("kafka_network_requestmetrics_requests_total", "Fetch") == 2
    assert gained("kafka_network_requestmetrics_totaltime_seconds_count", "Fetch") == 2
    assert gained("kafka_server_socket_server_metrics_connection_count") == 1
    assert after["kafka_log_log_size", "1", "prices"] == len(BATCH)
    assert after["kafka_log_log_logendoffset", "1", "prices"] == 2
    assert after["kafka_log_log_logendoffset", "2", "prices"] == 0
    assert after["kafka_topic_partition_current_offset", "1", "prices"] == 2
    assert after["kafka_cluster_partition_insyncreplicascount", "1", "prices"] == 1
    assert after["kafka_cluster_partition_underreplicated", "1", "prices"] == 0
    assert after["kafka_server_replicamanager_leadercount",] >= 3
    assert after["kafka_server_replicamanager_underreplicatedpartitions",] == 0
    assert after["kafka_server_raftmetrics_current_state", "leader"] == 1
    assert after["kafka_server_raftmetrics_current_leader",] == 1
    assert after["kafka_server_raftmetrics_commit_latency_seconds_count",] > 0
    assert after["kafka_controller_kafkacontroller_activecontrollercount",] == 1
    assert after["kafka_controller_kafkacontroller_globaltopiccount",] >= 1
    assert after["kafka_controller_kafkacontroller_globalpartitioncount",] >= 3
    assert after["kafka_controller_kafkacontroller_offlinepartitionscount",] == 0
    assert after["kafka_controller_kafkacontroller_activebrokercount",] == 1
    assert after["kafka_server_kafkaserver_brokerstate",] == 3
    deadline = time.monotonic() + 20  # the probe looks a few times a second at least
    while not after["kbroker_event_loop_stall_seconds_count",]:
        assert time.monotonic() < deadline
        after = samples(scrape(broker))
    assert after["process_resident_memory_bytes",] > 10_000_000
    assert after["kbroker_metrics_dropped_series",] == 0
    assert after["kbroker_metrics_series",] == len(after) - 2


def test_the_lag_of_groups(broker: EmbeddedBroker) -> None:
    name = 'a "group" \\ of\nlines'
    with connect(broker) as connection:
        produce(connection, "prices", 1)
        commit_when_loaded(connection, name, 1)
        commit_when_loaded(connection, "g" * (MAX_LABEL_CHARS + 1), 1)
    found = samples(scrape(broker))
    end = found["kafka_topic_partition_current_offset", "1", "prices"]
    assert found["kafka_consumergroup_current_offset", name, "1", "prices"] == 1
    assert found["kafka_consumergroup_log_end_offset", name, "1", "prices"] == end
    assert found["kafka_consumergroup_lag", name, "1", "prices"] == end - 1 > 0
    assert found["kbroker_metrics_dropped_series",] == 3, "of the group with a long name"
    with connect(broker) as connection:
        call(connection, DeleteGroupsRequest(groups_names=["g" * (MAX_LABEL_CHARS + 1)]), 2)
        commit_when_loaded(connection, name, int(end) + 5)
    found = samples(scrape(broker))
    assert found["kafka_consumergroup_lag", name, "1", "prices"] == 0, "never below zero"
    assert found["kbroker_metrics_dropped_series",] == 0
    assert found["kafka_server_group_coordinator_metrics_num_partitions", "active"] >= 1


def test_errors_of_whole_requests(broker: EmbeddedBroker) -> None:
    before = samples(scrape(broker))
    broker.call(lambda one: one.dispatcher.interceptors.update({42: _refused}))
    try:
        with connect(broker) as connection:
            call(connection, DeleteGroupsRequest(groups_names=["x"]), 2)
    finally:
        broker.call(lambda one: one.dispatcher.interceptors.clear())
    after = samples(scrape(broker))
    key = ("kbroker_request_errors_total", "COORDINATOR_NOT_AVAILABLE", "DeleteGroups")
    assert after[key] - before.get(key, 0) == 1
    assert after["kbroker_unexpected_errors_total",] == before["kbroker_unexpected_errors_total",]


def _refused(context: object, request: object) -> None:
    from kbroker.protocol.errors import KafkaError

    raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_evicted_fetch_sessions_are_counted() -> None:
    name = "kafka_server_fetchsessioncache"
    settings = {LISTENER: "127.0.0.1:0", "max.incremental.fetch.session.cache.slots": "1"}
    with EmbeddedBroker(settings) as broker:
        broker.create_topic("prices", partitions=1)
        wanted = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1 << 20)
        topic = FetchRequest.FetchTopic(topic="prices", partitions=[wanted])
        evictions = []
        with connect(broker) as connection:
            for replica_id in (-1, 7):  # a follower's session evicts a client's
                fetch = FetchRequest(
                    replica_id=replica_id, max_wait_ms=0, session_epoch=0, topics=[topic]
                )
                call(connection, fetch, 11)
                found = samples(scrape(broker))
                assert found[f"{name}_numincrementalfetchsessions",] == 1
                evictions.append(found[f"{name}_incrementalfetchsessionevictions_total",])
        assert evictions == [0, 1]


def test_counts_of_the_broker_do_not_go_back(broker: EmbeddedBroker) -> None:
    broker.create_topic("passing", partitions=1)
    with connect(broker) as connection:
        produce(connection, "passing", 0)
        before = samples(scrape(broker))
        assert before[f"{TRAFFIC}_bytesin_total", "passing"] == len(BATCH)
        call(connection, DeleteTopicsRequest(topic_names=["passing"], timeout_ms=5000), 5)
    after = samples(scrape(broker))
    assert (f"{TRAFFIC}_bytesin_total", "passing") not in after
    assert after[f"{TRAFFIC}_bytesin_total",] >= before[f"{TRAFFIC}_bytesin_total",]


def test_no_piece_is_large_and_the_node_may_change_between_two() -> None:
    with EmbeddedBroker({LISTENER: "127.0.0.1:0"}) as broker:
        broker.create_topic("wide", partitions=300)

        def pieces(count: int) -> list[str]:
            """The first pieces of a scrape, all of them after the last one."""
            return broker.call(lambda one: list(islice(one_scrape, count)))

        one_scrape = broker.call(lambda one: one._monitoring.metrics())  # type: ignore[union-attr]
        taken: list[str] = []
        while "kafka_log_log_size{" not in (piece := pieces(1)[0]):
            taken.append(piece)
        taken.append(piece)
        with connect(broker) as connection:
            call(connection, DeleteTopicsRequest(topic_names=["wide"], timeout_ms=5000), 5)
        broker.create_topic("narrow", partitions=1)
        taken += pieces(10_000)
        text = "".join(taken)
        assert "kbroker_metrics_series" in text.splitlines()[-4]
        assert max(piece.count("\n") for piece in taken) <= STEP_ROWS + 2
        found = samples(text)
        assert ("kafka_log_log_size", "299", "wide") not in found
        assert ("kafka_log_log_logendoffset", "0", "narrow") in found


def test_what_is_beyond_the_limit_is_left_out_and_counted() -> None:
    limits = {LISTENER: "127.0.0.1:0", "kbroker.metrics.max.series": "1000"}
    with EmbeddedBroker(limits) as broker:
        broker.create_topic("wide", partitions=150)
        found = samples(scrape(broker))
    assert found["kbroker_metrics_series",] == 1000
    assert found["kbroker_metrics_dropped_series",] > 300
    assert len(found) == 1002
    assert found["kafka_server_replicamanager_partitioncount",] == 150
    assert ("kafka_log_log_size", "149", "wide") in found
    assert ("kafka_cluster_partition_atminisr", "149", "wide") not in found


def test_nothing_is_imported_unless_metrics_are_served() -> None:
    code = (
        "import sys; from kbroker.testing.embedded import EmbeddedBroker\n"
        "with EmbeddedBroker() as broker:\n"
        "    print(broker.call(lambda running: running.metrics_port), end=' ')\n"
        "print('kbroker.server.monitoring' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "None False\n"
