"""What a produced batch costs: header, CRC and validation, beside the walk over its records.

    python benchmarks/records.py

For ADR 2. Prints microseconds per batch; one process, one thread.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable

from kbroker.log.validator import AppendOrigin, validate_batches
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import check_crc, read_batch_header
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.batches.records import iter_records
from kbroker.settings.views.log_config import LogConfig

NOW_MS = 1_800_000_000_000
RECORD_BYTES = 100
MIN_SECONDS = 0.2


def microseconds(action: Callable[[], object]) -> float:
    """Of one call: the best of three rounds of at least MIN_SECONDS."""
    best = float("inf")
    for _ in range(3):
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < MIN_SECONDS:
            action()
            count += 1
        best = min(best, elapsed / count)
    return best * 1e6


def measure(record_count: int, codec: Compression) -> list[str]:
    value = bytes(range(RECORD_BYTES))
    records = [(NOW_MS, b"key %d" % index, value, ()) for index in range(record_count)]
    batch = build_batch(records, compression=codec)
    config = LogConfig()

    def validate(full: bool) -> object:
        batch[0:8] = bytes(8)  # as the client sends it: base offset 0
        return validate_batches(
            batch,
            next_offset=1 << 40,
            leader_epoch=5,
            now_ms=NOW_MS,
            config=config,
            origin=AppendOrigin.CLIENT,
            compacted=False,
            validate_records=full,
        )

    header = read_batch_header(batch)
    columns = [
        microseconds(lambda: read_batch_header(batch)),
        microseconds(lambda: check_crc(batch, 0, header)),
        microseconds(lambda: validate(False)),
        microseconds(lambda: validate(True)),
        microseconds(lambda: list(iter_records(batch))),
        microseconds(lambda: build_batch(records, compression=codec)),
    ]
    row = [str(record_count), codec.name.lower(), str(len(batch))]
    return row + [f"{column:.2f}" for column in columns]


def main() -> None:
    """Print one row per batch size and codec."""
    print(f"{platform.node()}, Python {platform.python_version()}, microseconds per batch")
    names = ["records", "codec", "bytes", "header", "crc", "validate", "+ records", "decode"]
    names.append("build")
    rows = [names]
    for codec in (Compression.NONE, Compression.LZ4, Compression.ZSTD):
        rows += [measure(count, codec) for count in (1, 100, 1000)]
    for row in rows:
        print("  ".join(cell.rjust(9) for cell in row))


if __name__ == "__main__":
    sys.exit(main())
