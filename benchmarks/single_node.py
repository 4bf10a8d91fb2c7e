"""What a node that is its whole cluster costs: its start, its memory, and records produced to it.
`controllers` measures it beside the controllers of a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import kafka_perf
from benchmarks.side_by_side import (
    ROOT,
    Figures,
    Server,
    apache_kafka,
    measured,
    source_tree,
)
from benchmarks.start import first_record
from scripts.apache_kafka import ApacheKafka

START_TIMEOUT_S = 60.0
IDLE_S = 1.0
RECORD_BYTES = 1000
ROUNDS = 2
"""Loads on one server; those before the last one warm it up."""


def single_node(server: Server, megabytes: int) -> dict[str, Figures]:
    """Start it on an empty folder, produce to it, end it. The start of Apache Kafka has the format
    of its folder, which kbroker does by itself.
    """
    begun = time.monotonic()
    if isinstance(server, ApacheKafka):
        server.format()
        server.launch()
    else:
        server.start()
    try:
        start_s = first_record(server.port, begun + START_TIMEOUT_S) - begun
        time.sleep(IDLE_S)
        idle = server.resident_bytes()
        records = megabytes * 1_000_000 // RECORD_BYTES
        for number in range(ROUNDS):
            load = partial(
                kafka_perf.produce,
                server.bootstrap_servers,
                f"load-{number}",
                records=records,
                record_bytes=RECORD_BYTES,
            )
            produced = measured(server, records * RECORD_BYTES, load)
        return {
            "single node, start": {"first_record_s": start_s},
            "single node, idle": {"rss_mb": idle / 1e6},
            "single node, produce 1 KB": produced,
            "single node, after it": {"rss_mb": server.resident_bytes() / 1e6},
        }
    finally:
        server.stop()


def single_servers(
    names: Sequence[str], before: Path | None
) -> dict[str, Callable[[Path], Server]]:
    """What makes each server in a folder: those of `names`, and kbroker of the sources in the
    folder `before`. Both kbrokers are started by the same command.
    """
    makers: dict[str, Callable[[Path], Server]] = {
        name: apache_kafka if name == "kafka" else source_tree(ROOT) for name in names
    }
    if before is not None and "kbroker" in names:
        makers["before"] = source_tree(before)
    return makers
