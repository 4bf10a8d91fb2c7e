"""Batches of the logs that Apache Kafka 4.3.1 wrote, as its dump tool prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.protocol.batches.batch_header import (
    BatchHeader,
    check_crc,
    iter_batches,
)

GOLDEN = Path(__file__).parents[1] / "data" / "kafka-4.3.1"

LOGS = [
    pytest.param(path, id=f"{path.parent.name}/{path.stem[-3:]}")
    for path in sorted(GOLDEN.glob("data/*/*.log"))
    if path.parent.name.startswith(("codec", "txn", "compact", "log-append", "recompress"))
]

BATCH_LINE = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: (-?\d+) "
    r"producerId: (-?\d+) producerEpoch: (-?\d+) partitionLeaderEpoch: (\d+) "
    r"isTransactional: (\w+) isControl: (\w+) deleteHorizonMs: (\S+) position: (\d+) "
    r"(\w+): (-?\d+) size: (\d+) magic: 2 compresscodec: (\w+) crc: (\d+) isvalid: true"
)

RECORD_LINE = re.compile(
    r"\| offset: (\d+) \w+: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: (-?\d+) "
    r"headerKeys: \[(.*?)\](.*)"
)


class Dumped(NamedTuple):
    """A batch as Kafka's DumpLogSegments printed it."""

    batch: re.Match[str]
    records: list[re.Match[str]]


def dumped(log: Path) -> list[Dumped]:
    path = GOLDEN / "dump-clean" / log.parent.name / f"{log.name}.txt"
    batches: list[Dumped] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if batch := BATCH_LINE.match(line):
            batches.append(Dumped(batch, []))
        elif record := RECORD_LINE.match(line):
            batches[-1].records.append(record)
    return batches


def stored(log: Path) -> Iterator[tuple[memoryview, BatchHeader]]:
    data = memoryview(log.read_bytes())
    for position, header in iter_batches(data):
        assert check_crc(data, position, header)
        yield data[position : position + header.size_bytes], header


HEADERS = [(b"a", b"1"), (b"a", None), (b"", b"")]

RECORDS: list[tuple[int | None, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]] = [
    (1000, b"k", b"v", HEADERS),
    (900, None, b"v" * 300, []),
    (2000, b"", None, []),
]
