"""What a job's queries did, for Prometheus: `--metrics-port` serves it at `/metrics` until the job
has ended. Values are those of the end of each batch and stay as they are until the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from .errors import JobError
from .progress import BatchProgress

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "kbroker_spark_"
REQUEST_TIMEOUT_S: Final = 10.0
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Sample = tuple[str, float]
"""Labels and a value."""


@dataclass(slots=True)
class _Query:
    """The sums of one query, and its last batch."""

    last: BatchProgress
    files: int = 0
    rows: int = 0
    batches: int = 0
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)


class Metrics:
    """Counts batches in one thread and writes them in others. job: a label of every sample."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._queries: dict[str, _Query] = {}
        self._lock = threading.Lock()

    def record(self, name: str, batch: BatchProgress, files: int) -> None:
        """Count a batch of the query `name`. files: of all its batches."""
        with self._lock:
            query = self._queries.setdefault(name, _Query(batch))
            query.last, query.files = batch, files
            query.rows += batch.rows
            query.batches += bool(batch.rows)
            for topic, offsets in batch.end.items():
                for partition, offset in offsets.items():
                    query.offsets[topic, partition] = offset

    def text(self) -> str:
        """In Prometheus' text format, version 0.0.4."""
        with self._lock:
            return "".join(self._families())

    def _families(self) -> Iterator[str]:
        def each(value: Callable[[_Query], float | None]) -> list[Sample]:
            found = ((self._labels(name), value(q)) for name, q in self._queries.items())
            return [(labels, number) for labels, number in found if number is not None]

        rows, batches = "records that were read", "batches that had records"
        yield _family("rows_total", "counter", rows, each(lambda q: q.rows))
        yield _family("batches_total", "counter", batches, each(lambda q: q.batches))
        files = "files that were written"
        yield _family("files_total", "counter", files, each(lambda q: q.files))
        lag = "records from the end of the last batch to the end of the topics"
        yield _family("lag_records", "gauge", lag, each(lambda q: q.last.lag))
        behind = "time that the lag takes at the speed of the last batch"
        yield _family("behind_seconds", "gauge", behind, each(lambda q: q.last.seconds_behind))
        rate = "of the last batch"
        yield _family("rows_per_second", "gauge", rate, each(lambda q: q.last.rows_per_second))
        took = "how long the last batch took"
        seconds = each(lambda q: q.last.duration_ms / 1000)
        yield _family("last_batch_seconds", "gauge", took, seconds)
        yield _family("last_batch_id", "gauge", rate, each(lambda q: q.last.batch_id))
        offsets = [
            (self._labels(name, topic=topic, partition=str(partition)), float(offset))
            for name, query in self._queries.items()
            for (topic, partition), offset in sorted(query.offsets.items())
        ]
        yield _family("next_offset", "gauge", "where the next batch begins", offsets)

    def _labels(self, query: str, **more: str) -> str:
        labels = {"job": self._job, "query": query, **more}
        return ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())


def _family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {PREFIX}{name} {help_text}", f"# TYPE {PREFIX}{name} {kind}"]
    lines += [f"{PREFIX}{name}{{{labels}}} {value:.17g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def parse_port(text: str) -> int:
    """A port to listen on. Raises ValueError."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError("write a port from 1 to 65535")
    return int(text)


@contextmanager
def serving(metrics: Metrics, port: int) -> Iterator[None]:
    """Serve on every address of this machine while the block runs. Raises JobError if the port
    cannot be had.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = metrics.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not worth a line."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that went away is not worth a trace."""

    try:
        server = Server(("", port), Handler)
    except OSError as error:
        raise JobError(f"--metrics-port {port}: {error.strerror or error}") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
