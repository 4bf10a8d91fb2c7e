"""Options of the format `kbroker`, as Spark hands them over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_jobs.data_source.options import EARLIEST, LATEST, NAMES, SourceOptions, source_options
from spark_jobs.errors import JobError

VALUES = {"kafka.bootstrap.servers": "k:1", "subscribe": "a, b"}


def test_values() -> None:
    assert source_options(VALUES, is_stream=True) == SourceOptions("k:1", ("a", "b"))
    given = {
        "kafka.bootstrap.servers": "k:1",
        "assign": '{"a":[0,2]}',
        "startingOffsets": '{"a":{"0":-2,"2":7}}',
        "endingOffsets": '{"a":{"0":-1,"2":9}}',
        "includeHeaders": "true",
        "failOnDataLoss": "false",
        "kafka.isolation.level": "read_uncommitted",
        "path": "x",
    }
    lowered = {name.lower(): value for name, value in given.items()}
    assert source_options(lowered, is_stream=False) == SourceOptions(
        "k:1",
        ("a",),
        partitions={"a": (0, 2)},
        starting={"a": {0: EARLIEST, 2: 7}},
        ending={"a": {0: LATEST, 2: 9}},
        fails_on_data_loss=False,
        has_headers=True,
        is_read_committed=False,
    )


def test_every_option_is_read() -> None:
    texts = {
        "kafka.bootstrap.servers": "k:1",
        "kafka.isolation.level": "read_committed",
        "kafka.security.protocol": "PLAINTEXT",
        "startingOffsets": "latest",
        "endingOffsets": "latest",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": "5",
        "includeHeaders": "true",
        "subscribe": "a",
        "subscribePattern": "a.*",
        "assign": '{"a":[0]}',
    }
    assert set(texts) == set(NAMES)
    stream = {"subscribe": "a", "maxOffsetsPerTrigger": "5", "kafka.bootstrap.servers": "k:1"}
    assert source_options(stream, is_stream=True).max_offsets == 5
    latest = VALUES | {"startingOffsets": "latest"}
    assert source_options(latest, is_stream=True).starting == LATEST
    by_pattern = {"subscribePattern": "a.*", "kafka.bootstrap.servers": "k:1"}
    assert source_options(by_pattern, is_stream=True).pattern == "a.*"


@pytest.mark.parametrize(
    ("values", "is_stream", "why"),
    [
        ({}, True, "give the option kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "k:1"}, True, "give one of the options"),
        ({**VALUES, "assign": "{}"}, True, "give one of the options"),
        ({**VALUES, "subscribe": " ,"}, True, "names no topic"),
        ({**VALUES, "minPartitions": "4"}, True, "has no option minPartitions"),
        ({**VALUES, "endingOffsets": "latest"}, True, "a stream has no end"),
        ({**VALUES, "maxOffsetsPerTrigger": "4"}, False, "is for streams"),
        ({**VALUES, "endingOffsets": "earliest"}, False, "cannot be earliest"),
        ({**VALUES, "startingOffsets": "latest"}, False, "batch read cannot be latest: it would"),
        ({**VALUES, "startingOffsets": '{"a":{"0":3,"1":-1}}'}, False, r"\(latest\), as of a-1"),
        ({**VALUES, "startingOffsets": "first"}, True, "write earliest, latest or JSON"),
        ({**VALUES, "startingOffsets": '{"a":{"0":-3}}'}, True, "cannot be less than -2"),
        ({**VALUES, "endingOffsets": '{"a":{"0":-2}}'}, False, "cannot be less than -1"),
        ({**VALUES, "maxOffsetsPerTrigger": "0"}, True, "write a positive number"),
        ({**VALUES, "failOnDataLoss": "no"}, True, "write true or false"),
        ({**VALUES, "kafka.isolation.level": "x"}, True, "read_committed or read_uncommitted"),
        ({**VALUES, "kafka.security.protocol": "SSL"}, True, "connects without TLS and SASL"),
        ({"kafka.bootstrap.servers": "k:1", "assign": "[1]"}, True, "write it as"),
        ({"kafka.bootstrap.servers": "k:1", "assign": '{"a":[]}'}, True, "names no partition"),
    ],
)
def test_mistakes(values: dict[str, str], is_stream: bool, why: str) -> None:
    with pytest.raises(JobError, match=why):
        source_options(values, is_stream=is_stream)


def test_the_table_of_the_docs_is_whole() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "data-source.md").read_text()
    table = text.partition("| option | value |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    documented = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    assert sorted(documented) == sorted(NAMES)
