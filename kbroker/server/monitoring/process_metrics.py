"""Metrics of the process, its event loop and its memory account."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kbroker import __version__
from kbroker.server.monitoring.exposition import Exposition, labels
from kbroker.server.monitoring.sources import LoopStalls, MetricsSources
from kbroker.server.network.memory_pool import MemoryPool

_OWN_STATUS: Final = Path("/proc/self/statm")


def process_metrics(out: Exposition, sources: MetricsSources) -> Iterator[str]:
    """Quick, whatever the node holds."""
    yield from _loop(out, sources.stalls)
    yield from _memory(out, sources.memory)
    times = os.times()
    yield out.counter("process_cpu_seconds", "User and system time", times.user + times.system)
    resident = resident_bytes()
    if resident is not None:
        yield out.gauge("process_resident_memory_bytes", "Resident set", resident)
    yield from out.counters(
        "python_gc_collections",
        "Runs of the garbage collector",
        [
            (labels(generation=generation), stats["collections"])
            for generation, stats in enumerate(gc.get_stats())
        ],
    )
    python = sys.version.split()[0]
    info = [(labels(version=__version__, python=python), 1)]
    yield from out.gauges("kbroker_build_info", "Always 1", info)


def _loop(out: Exposition, stalls: LoopStalls) -> Iterator[str]:
    yield from out.histograms(
        "kbroker_event_loop_stall_seconds",
        "How late the loop came to a timer",
        [("", stalls.stalls)],
    )
    yield out.gauge(
        "kbroker_event_loop_stall_max_seconds", "The longest since the start", stalls.stalls.maximum
    )
    yield out.gauge(
        "kbroker_event_loop_stall_recent_max_seconds",
        "The longest of the last one or two minutes",
        stalls.recent_maximum,
    )


def _memory(out: Exposition, memory: MemoryPool) -> Iterator[str]:
    yield out.gauge("kbroker_memory_limit_bytes", "kbroker.memory.limit.bytes", memory.limit)
    yield out.gauge("kbroker_memory_used_bytes", "What of it is in use", memory.used)
    yield out.gauge("kbroker_memory_peak_bytes", "The most that ever was", memory.peak)
    yield out.gauge("kbroker_memory_waiting", "Connections that wait for memory", memory.waiting)
    yield out.counter("kbroker_memory_waits", "How often one had to wait", memory.waits)


def resident_bytes() -> int | None:
    """Of this process; None where the system does not tell."""
    try:
        return int(_OWN_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
