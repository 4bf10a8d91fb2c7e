"""The checks of a cluster find what they are there for: each is shown a state that breaks it."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import KafkaError
from kbroker.quorum.raft.control import control_batch, leader_change
from tests.cluster.checks import (
    Leaders,
    check_acknowledged,
    check_equal_logs,
    logged_leaders,
    stored_leaders,
)

TOPIC = (2, "t")


def batch(offset: int, value: bytes, epoch: int = 1) -> bytes:
    """Of one record."""
    rows = [(0, None, value, ())]
    return bytes(build_batch(rows, base_offset=offset, partition_leader_epoch=epoch))


def change(offset: int, leader: int, epoch: int) -> bytes:
    """The batch at the beginning of an epoch."""
    record = leader_change(leader, [1, 2, 3], [leader])
    return bytes(control_batch([record], base_offset=offset, epoch=epoch, timestamp_ms=0))


def test_an_epoch_has_one_leader() -> None:
    leaders = Leaders()
    leaders.observe(3, 1, "the log of node 1")
    leaders.observe(4, 2, "the log of node 1")
    leaders.observe(3, 1, "the log of node 2")
    assert leaders.epochs == 2
    with pytest.raises(AssertionError, match=r"two leaders in epoch 4: node 2 .*node 3 \(lines"):
        leaders.observe(4, 3, "lines of node 3")


def test_leaders_are_read_from_log_lines() -> None:
    text = (
        "INFO x: Node 2: the leader of the metadata quorum in epoch 7 is unknown\n"
        "INFO x: Node 2: the leader of the metadata quorum in epoch 7 is node 3\n"
        "INFO x: Node 3: active controller of cluster abc at epoch 7, 0 topics, metadata offset 1\n"
    )
    assert list(logged_leaders(text)) == [(7, 3), (7, 3)]


def test_leaders_are_read_from_the_metadata_log_also_behind_a_torn_batch() -> None:
    log = change(0, 1, epoch=2) + batch(1, b"a") + change(2, 3, epoch=5) + batch(3, b"b")[:20]
    assert list(stored_leaders(log)) == [(2, 1), (5, 3)]


def test_logs_are_equal_up_to_the_high_watermark() -> None:
    common = batch(0, b"a") + batch(1, b"b")
    logs = {"one": common + batch(2, b"c"), "two": common + batch(2, b"d"), "three": common}
    assert check_equal_logs(logs, 2) == len(common)
    with pytest.raises(AssertionError, match="the log of three ends at offset 2, before"):
        check_equal_logs(logs, 3)
    del logs["three"]
    with pytest.raises(AssertionError, match=r"one and two differ .* in the batch at offset 2"):
        check_equal_logs(logs, 3)


def test_a_record_of_another_epoch_is_a_difference() -> None:
    logs = {"one": batch(0, b"a", epoch=1), "two": batch(0, b"a", epoch=2)}
    with pytest.raises(AssertionError, match="in the batch at offset 0"):
        check_equal_logs(logs, 1)


def test_a_log_that_begins_later_is_compared_from_there() -> None:
    late = batch(1, b"b") + batch(2, b"c")
    assert check_equal_logs({"one": batch(0, b"a") + late, "two": late}, 3) == len(late)


def test_changes_that_were_acknowledged_are_there() -> None:
    acknowledged = {TOPIC: {"retention.ms": "5"}}
    check_acknowledged(acknowledged, {TOPIC: {"retention.ms": "5", "segment.ms": "1"}}, "node 1")
    with pytest.raises(AssertionError, match=r"node 1 lost 1 .*retention.ms is 7, not 5"):
        check_acknowledged(acknowledged, {TOPIC: {"retention.ms": "7"}}, "node 1")
    with pytest.raises(AssertionError, match="t does not exist"):
        check_acknowledged(acknowledged, {TOPIC: None}, "node 1")
    with pytest.raises(AssertionError, match="t does not exist"):
        check_acknowledged({TOPIC: {}}, {}, "node 1")


def test_a_damaged_byte_anywhere_is_found() -> None:
    log = b"".join(batch(offset, b"value") for offset in range(5))
    random = Random(1)
    for _ in range(50):
        damaged = bytearray(log)
        damaged[random.randrange(len(log))] ^= 1
        with pytest.raises((AssertionError, KafkaError)):
            check_equal_logs({"one": log, "two": bytes(damaged)}, 5)
