"""Options of writes to the format `kbroker`, as Spark hands them over."""

from __future__ import annotations

import pytest

from kbroker.protocol.batches.compression import Compression
from spark_jobs.data_source.sink_options import NAMES, SinkOptions, sink_options
from spark_jobs.errors import JobError

VALUES = {"kafka.bootstrap.servers": "k:1", "topic": "a"}
STREAM = VALUES | {"checkpointlocation": "cp"}


def test_values() -> None:
    assert sink_options(VALUES, is_stream=False) == SinkOptions("k:1", "a", ("a",))
    given = {
        "kafka.bootstrap.servers": "k:1",
        "kafka.compression.type": "zstd",
        "kafka.transaction.timeout.ms": "5000",
        "topics": "a, b",
        "queryName": "q",
        "checkpointLocation": "cp",
        "stagingLocation": "st",
        "path": "x",
    }
    lowered = {name.lower(): value for name, value in given.items()}
    assert sink_options(lowered, is_stream=True) == SinkOptions(
        "k:1", None, ("a", "b"), "q", None, "cp", "st", Compression.ZSTD, 5000
    )
    batch = VALUES | {"queryname": "q", "batchid": "7"}
    assert sink_options(batch, is_stream=False).batch_id == 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "a"}, "give the option kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "k:1", "checkpointlocation": "cp"}, "give the option topic"),
        (STREAM | {"topics": "b"}, "and not both"),
        (STREAM | {"kafka.acks": "1"}, "has no option kafka.acks for writing: it knows"),
        (STREAM | {"kafka.security.protocol": "SSL"}, "without TLS and SASL"),
        (STREAM | {"queryname": "a b"}, "queryName a b: use letters"),
        (STREAM | {"queryname": "q", "batchid": "1"}, "batchId is for batch writes"),
        (STREAM | {"kafka.compression.type": "rar"}, "it is one of none, gzip, snappy, lz4, zstd"),
        (STREAM | {"kafka.transaction.timeout.ms": "0"}, "timeout.ms 0: write a positive number"),
        (VALUES, "give the option checkpointLocation"),
    ],
)
def test_what_cannot_be(given: dict[str, str], said: str) -> None:
    with pytest.raises(JobError, match=said) as raised:
        sink_options(given, is_stream=True)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("given", [{"batchid": "1"}, {"queryname": "q", "batchid": "x"}])
def test_a_batch_id_belongs_to_a_name(given: dict[str, str]) -> None:
    with pytest.raises(JobError, match="batchId is a number, and needs a queryName"):
        sink_options(VALUES | given, is_stream=False)


def test_names_are_told_apart_without_case() -> None:
    assert len({name.lower() for name in NAMES}) == len(NAMES)
