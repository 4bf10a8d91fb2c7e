"""All that the log is held to, in one table: appends, look-ups by time, recovery, a start with many
partitions, compaction and its memory, each beside its bare limit in the same run.

    python -m benchmarks.log_table [directory]      (make bench-log)

About three minutes on two quiet cores. Each line is printed as it is found, the table at the end.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import compaction, log_append, log_recovery
from benchmarks.figures import Figure, machine, table


def figures(directory: Path) -> Iterator[Figure]:
    for kib in log_append.BATCH_KIB:
        yield from log_append.append(directory, kib)
    yield log_append.time_lookups(directory)
    for kib in log_recovery.BATCH_KIB:
        yield log_recovery.recovery(directory / f"recovery-{kib}", kib, megabytes=256)
        shutil.rmtree(directory / f"recovery-{kib}")
    yield from log_recovery.start(directory / "start", partitions=2000)
    shutil.rmtree(directory / "start")
    yield from compaction.speed(directory)
    yield from compaction.memory(directory)


def main() -> None:
    directory = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    started, before = time.monotonic(), machine()
    found = []
    try:
        for figure in figures(directory):
            print(figure, file=sys.stderr, flush=True)
            found.append(figure)
    finally:
        shutil.rmtree(directory)
    print(f"\n{before} before and after: {machine()}; {time.monotonic() - started:.0f} s\n")
    print(table(found))


if __name__ == "__main__":
    main()
