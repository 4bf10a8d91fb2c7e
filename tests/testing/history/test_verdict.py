"""A history in which everything is right has no anomaly; each rule that is broken is one line."""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.testing.history.operations import ReplicaLog
from kbroker.testing.history.verdict import anomalies
from tests.testing.history.histories import EVENTS, right_history

INTERNAL = TopicPartition("__consumer_offsets", 0)


def test_a_right_history_has_no_anomaly() -> None:
    assert right_history().lines() == []


def test_internal_topics_are_compared_and_not_read() -> None:
    clients = right_history()
    one = bytes(build_batch([(0, b"key", b"value", ())]))
    other = bytes(build_batch([(0, b"key", b"other", ())]))
    replicas = {"node 1": ReplicaLog(one, 1), "node 2": ReplicaLog(one, 1)}
    clients.history.replicas[INTERNAL] = replicas
    assert clients.lines() == []
    clients.history.replicas[INTERNAL] = {**replicas, "node 3": ReplicaLog(other, 1)}
    (line,) = clients.lines()
    assert line.startswith("__consumer_offsets-0: the logs of node 1 and node 3 differ")


def test_replicas_that_differ_are_found() -> None:
    clients = right_history()
    clients.logs[EVENTS].tampered["node 2"] = bytes(clients.logs[EVENTS].data[:-10])
    (line,) = clients.lines()
    assert line == "events-0: the log of node 2 ends at offset 4, before the high watermark 5"


def test_a_replica_that_is_no_log_is_found() -> None:
    clients = right_history()
    damaged = bytearray(clients.logs[EVENTS].data)
    damaged[16] ^= 0xFF  # magic
    clients.logs[EVENTS].tampered["node 1"] = bytes(damaged)
    (line,) = clients.lines()
    assert line.startswith("events-0: a replica is damaged: ")


def test_records_may_have_more_bytes_than_their_values() -> None:
    clients = right_history()
    clients.send(b"value")
    clients.logs[EVENTS].append(b"value and more")
    (line,) = clients.lines()
    assert "never sent: b'value and more'" in line
    wrong = anomalies(clients.history, value_of=lambda data: data.partition(b" ")[0])
    assert wrong == []


def test_without_replicas_nothing_is_said_of_contents() -> None:
    clients = right_history(skip=(b"d",))
    clients.history.replicas.clear()
    clients.logs.clear()
    assert clients.lines() == []
