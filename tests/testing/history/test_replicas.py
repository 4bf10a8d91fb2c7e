"""Replicas with the same bytes, and those without."""

from __future__ import annotations

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.testing.history.replicas import between, common_start, replica_difference


def batch(offset: int, value: bytes, epoch: int = 1) -> bytes:
    """Of one record."""
    rows = [(0, None, value, ())]
    return bytes(build_batch(rows, base_offset=offset, partition_leader_epoch=epoch))


def test_equal_up_to_the_high_watermark() -> None:
    common = batch(0, b"a") + batch(1, b"b")
    logs = {"one": common + batch(2, b"c"), "two": common + batch(2, b"d"), "three": common}
    assert replica_difference(logs, 2) is None
    assert between(logs["one"], 0, 2) == common
    problem = replica_difference(logs, 3)
    assert problem == "the log of three ends at offset 2, before the high watermark 3"
    del logs["three"]
    problem = replica_difference(logs, 3)
    assert problem is not None and problem.endswith("first in the batch at offset 2")


def test_compared_from_the_latest_start() -> None:
    late = batch(1, b"b") + batch(2, b"c")
    logs = {"one": batch(0, b"a") + late, "two": late}
    assert common_start(logs) == 1
    assert replica_difference(logs, 3) is None


def test_a_log_that_begins_after_the_high_watermark() -> None:
    logs = {"one": batch(0, b"a"), "two": batch(7, b"a")}
    problem = replica_difference(logs, 1)
    assert problem == "a log begins at offset 7, after the high watermark 1"


def test_a_batch_that_one_replica_lacks() -> None:
    logs = {"one": batch(0, b"a") + batch(2, b"c"), "two": batch(0, b"a") + batch(1, b"b")}
    logs["two"] += batch(2, b"c")
    problem = replica_difference(logs, 3)
    assert problem is not None and "in the batch at offset" in problem


def test_empty_replicas_are_equal() -> None:
    assert replica_difference({"one": b"", "two": b""}, 0) is None
    assert replica_difference({}, 0) is None
