"""The rows of a task: as many as records, in their order, each to one topic."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from spark_jobs.decoding.decoder import JsonDecoder, TextDecoder
from spark_jobs.dlq.checks import Checks
from spark_jobs.dlq.headers import RETRIES
from spark_jobs.dlq.records import COLUMNS, Route

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch(values: list[bytes | None], headers: list[Any] | None = None) -> Any:
    count = len(values)
    columns = {
        "key": pa.array([b"k"] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.array(headers or [None] * count, HEADERS),
        "topic": pa.array(["orders"] * count, pa.string()),
        "partition": pa.array([2] * count, pa.int32()),
        "offset": pa.array(range(100, 100 + count), pa.int64()),
        "timestamp": pa.array([-1, *range(count - 1)], pa.int64()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in COLUMNS], names=list(COLUMNS))


ROUTE = Route(Checks(1000, decoder=JsonDecoder()), "good", "bad", "q")


def test_each_record_goes_to_one_topic() -> None:
    found = pickle.loads(pickle.dumps(ROUTE)).routed(batch([b"1", b"{", None, b"2"]), 4)
    assert found.column("topic").to_pylist() == ["good", "bad", "good", "good"]
    assert found.column("value").to_pylist() == [b"1", b"{", None, b"2"]
    assert found.column("timestamp").to_pylist() == [-1, 0, 1, 2]
    _, dead, *_ = found.column("headers").to_pylist()
    named = {header["key"]: header["value"] for header in dead}
    assert named["__connect.errors.offset"] == b"101"
    assert named["__connect.errors.task.id"] == b"4"
    assert named["__connect.errors.class.name"] == b"spark_jobs.dlq.checks.Checks"


def test_headers_of_good_records_stay() -> None:
    own = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    for values in ([b"1", b"2"], [b"1", b"{"]):
        found = ROUTE.routed(batch(values, [own, []]), 0)
        assert found.column("headers").to_pylist()[0] == own


def test_a_retry_takes_the_headers_off() -> None:
    first = ROUTE.routed(batch([b"{", b"["], [[{"key": "a", "value": b"1"}], []]), 0)
    retry = Route(Checks(1000, decoder=TextDecoder()), "good", "bad", "q", is_retry=True)
    dead = first.column("headers").to_pylist()
    good = retry.routed(batch([b"{", b"["], dead), 0)
    assert good.column("topic").to_pylist() == ["good", "good"]
    assert good.column("headers").to_pylist() == [[{"key": "a", "value": b"1"}], []]
    still = Route(ROUTE.checks, "good", "bad", "q", is_retry=True).routed(
        batch([b"{"], dead[:1]), 0
    )
    named = {header["key"]: header["value"] for header in still.column("headers").to_pylist()[0]}
    assert named[RETRIES.decode()] == b"1"
