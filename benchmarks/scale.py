"""Cost against size: does a large broker pay for what it is not asked for?

    python benchmarks/scale.py [--only NAME ...] [--quick] [--log-gb 20] [--json FILE]
        [--plots FOLDER]

Subjects: partitions, connections, topics, sessions, log, requests. CPU is that of the broker's
process, so what else runs on the machine matters little; times are wall clock. The growth of a cost
is the exponent between its largest two sizes (and over all of them): about 0 is constant, 1 linear.
--quick leaves the largest sizes out. A log of 20 GB needs that much disk.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.svg import lines  # noqa: E402
from benchmarks.wire import (  # noqa: E402
    FETCH_VERSION,
    Case,
    Client,
    Consumer,
    ProduceRequests,
    create_topics,
    produce,
)
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse  # noqa: E402
from kbroker.protocol.messages.list_offsets import (  # noqa: E402
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse  # noqa: E402
from kbroker.testing.process import BrokerProcess  # noqa: E402

ONE_BATCH = Case("one batch of 1 KB", 1, 1, 1000)
ONE_RECORD = Case("one record of 100 B", 1, 1, 100)
MEGABYTE = Case("1 MB of 10 KB records", 1, 100, 10_000)
REPEATS = 300
STOP_TIMEOUT_S = 300
IDLE_S = 5.0
LOG_SIZES = [1, 2, 5, 10, 20]
"""GB."""
PARTITIONS_PER_TOPIC = 100


@dataclass(frozen=True, slots=True)
class Point:
    """One cost at one size. `curve`: what was measured, with its unit."""

    subject: str
    curve: str
    size: float
    cost: float


def broker_in(folder: Path) -> BrokerProcess:
    return BrokerProcess(
        folder,
        overrides={"log.retention.ms": "-1", "max.incremental.fetch.session.cache.slots": "2000"},
        start_timeout_s=300,
    )


def cpu_us(broker: BrokerProcess, count: int, work: Callable[[], object]) -> float:
    """Microseconds of the broker's CPU for one of `count` in work; its clock ticks every 10 ms."""
    before = broker.cpu_seconds()
    work()
    return max((broker.cpu_seconds() - before) / count * 1e6, 0.1)


def repeated(broker: BrokerProcess, work: Callable[[], object], least_s: float = 0.3) -> float:
    """CPU of one call of work, over as many as cost the broker least_s."""
    work()
    count, before = 0, broker.cpu_seconds()
    while broker.cpu_seconds() - before < least_s and count < 20_000:
        for _ in range(20):
            work()
        count += 20
    return max((broker.cpu_seconds() - before) / count * 1e6, 0.1)


def idle_ms(broker: BrokerProcess) -> float:
    """CPU per second of a broker without requests, in ms."""
    before = broker.cpu_seconds()
    time.sleep(IDLE_S)
    return (broker.cpu_seconds() - before) / IDLE_S * 1000


def partitions(folder: Path, quick: bool) -> Iterator[Point]:
    """Partitions hosted: making them, memory, one produce, one look at the metadata, a restart."""
    subject = "partitions"
    for size in (1, 10, 100, 1000) if quick else (1, 10, 100, 1000, 10_000):
        with broker_in(folder / f"p{size}") as broker:
            create_topics(broker, [("probe", 1)])
            empty = broker.resident_bytes()
            started = time.perf_counter()
            left = size
            names: list[tuple[str, int]] = []
            while left:
                count = min(left, PARTITIONS_PER_TOPIC)
                names.append((f"t{len(names)}", count))
                left -= count
            spent = cpu_us(broker, size, lambda names=names: create_topics(broker, names))  # type: ignore[misc]  # bound now
            yield Point(subject, "made: ms of wall clock each", size, per_ms(started, size))
            yield Point(subject, "made: us of CPU each", size, spent)
            grown = max(broker.resident_bytes() - empty, 0)
            yield Point(subject, "memory: KiB each", size, grown / size / 1024)
            client = Client(broker.host, broker.port)
            requests = ProduceRequests(ONE_BATCH, "probe")
            one = repeated(broker, lambda: produce(client, requests, 20)) / 20  # noqa: B023  # called at once
            yield Point(subject, "produce to one of them: us of CPU", size, one)
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="probe")])
            one = repeated(broker, lambda: client.ask(asked, MetadataResponse, 9))  # noqa: B023  # called at once
            yield Point(subject, "metadata of a topic with one partition: us of CPU", size, one)
            yield Point(subject, "idle: ms of CPU per second", size, idle_ms(broker))
            client.close()
            stop_in_order(broker)
            started = time.perf_counter()
            broker.start()
            yield Point(subject, "start: s", size, time.perf_counter() - started)
        shutil.rmtree(folder / f"p{size}", ignore_errors=True)


def stop_in_order(broker: BrokerProcess) -> None:
    """One that is killed for its slowness has to be recovered, which is another cost."""
    if broker.stop(STOP_TIMEOUT_S) != 0:
        raise SystemExit(f"the broker did not stop within {STOP_TIMEOUT_S} s")


def each(values: Iterable[int], work: Callable[[int], object]) -> None:
    for value in values:
        work(value)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def per_ms(started: float, count: int) -> float:
    return (time.perf_counter() - started) / count * 1000


def connections(folder: Path, quick: bool) -> Iterator[Point]:
    """Idle connections beside one that works."""
    subject = "connections"
    with broker_in(folder / "connections") as broker:
        create_topics(broker, [("t0", 1)])
        client = Client(broker.host, broker.port)
        requests = ProduceRequests(ONE_BATCH, "t0")
        produce(client, requests, REPEATS)
        empty = broker.resident_bytes()
        others: list[socket.socket] = []
        for size in (1, 10, 100, 1000) if quick else (1, 10, 100, 1000, 5000):
            new = size - len(others)

            def connect(new: int = new) -> None:
                for _ in range(new):
                    others.append(socket.create_connection((broker.host, broker.port)))
                client.ask(MetadataRequest(topics=[]), MetadataResponse, 9)

            spent = cpu_us(broker, new, connect)
            yield Point(subject, "opened: us of CPU each", size, spent)
            grown = max(broker.resident_bytes() - empty, 1)
            yield Point(subject, "memory: KiB each", size, grown / size / 1024)
            one = repeated(broker, lambda: produce(client, requests, 20)) / 20
            yield Point(subject, "produce on one of them: us of CPU", size, one)
            yield Point(subject, "idle: ms of CPU per second", size, idle_ms(broker))
        for connection in others:
            connection.close()
        client.close()


def topics(folder: Path, quick: bool) -> Iterator[Point]:
    """Topics named in a Metadata request, and all topics asked for."""
    subject = "topics"
    with broker_in(folder / "topics") as broker:
        create_topics(broker, [(f"topic-{i}", 1) for i in range(1000)])
        client = Client(broker.host, broker.port)
        for size in (1, 10, 100, 1000):
            asked = MetadataRequest(
                topics=[
                    MetadataRequest.MetadataRequestTopic(name=f"topic-{i}") for i in range(size)
                ]
            )
            one = repeated(broker, lambda: client.ask(asked, MetadataResponse, 9))  # noqa: B023  # called at once
            yield Point(subject, "one request: us of CPU", size, one)
            yield Point(subject, "each topic: us of CPU", size, one / size)
        client.close()


def sessions(folder: Path, quick: bool) -> Iterator[Point]:
    """Fetch sessions of many partitions that have nothing new."""
    subject = "sessions"
    with broker_in(folder / "sessions") as broker:
        create_topics(broker, [("wide", 1000)])
        client = Client(broker.host, broker.port)
        for size in (1, 10, 100, 1000):
            one, _ = idle_session(client, "wide", size)
            poll = repeated(broker, one)
            yield Point(subject, "poll of one idle session of so many: us of CPU", size, poll)
        empty = broker.resident_bytes()
        polls: list[Callable[[], None]] = []
        for size in (1, 10, 100):
            while len(polls) < size:
                polls.append(idle_session(client, "wide", 1000)[0])

            def all_of_them(size: int = size) -> None:
                for poll in polls[:size]:
                    poll()

            one_us = repeated(broker, all_of_them) / size
            yield Point(
                subject, "poll of one of so many idle sessions of 1,000: us of CPU", size, one_us
            )
            grown = max(broker.resident_bytes() - empty, 1)
            yield Point(
                subject, "memory of a session's partition: bytes", size * 1000, grown / size / 1000
            )
            yield Point(subject, "idle: ms of CPU per second", size, idle_ms(broker))
        client.close()


def idle_session(client: Client, topic: str, size: int) -> tuple[Callable[[], None], int]:
    """A session read to its end: a poll of it, which does not wait, and its id."""
    wanted = [
        FetchRequest.FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=1 << 20)
        for i in range(size)
    ]
    opening = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_epoch=0,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=wanted)],
    )
    opened = client.ask(opening, FetchResponse, FETCH_VERSION)
    if opened.error_code or not opened.session_id:
        raise SystemExit(f"no session: error {opened.error_code}")
    epoch = 0

    def poll() -> None:
        nonlocal epoch
        epoch += 1
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, session_id=opened.session_id, session_epoch=epoch, topics=[]
        )
        answer = client.ask(request, FetchResponse, FETCH_VERSION)
        if answer.error_code or answer.responses:
            raise SystemExit("a poll of an idle session found something")

    return poll, opened.session_id


def log(folder: Path, quick: bool) -> Iterator[Point]:
    """One partition's log: start, look-ups, reading all of it."""
    subject = "log"
    path = folder / "log"
    with broker_in(path) as broker:
        create_topics(broker, [("t0", 1)])
    written, began_ms = 0, now_ms()
    requests = ProduceRequests(MEGABYTE, "t0")
    for size in (1, 2) if quick else LOG_SIZES:
        with broker_in(path) as broker:
            client = Client(broker.host, broker.port)
            missing = (size - written) * 1000
            spent = cpu_us(broker, missing, lambda n=missing: produce(client, requests, n))  # type: ignore[misc]  # noqa: B023  # called at once
            written = size
            yield Point(subject, "append: s of CPU per GB", size, spent / 1000)
            client.close()
            stop_in_order(broker)
            started = time.perf_counter()
            broker.start()
            yield Point(subject, "start after a clean stop: s", size, time.perf_counter() - started)
            yield Point(subject, "memory: MB", size, broker.resident_bytes() / 1e6)
            client = Client(broker.host, broker.port)
            end = list_offset(client, -1)
            found = random.Random(size)
            offsets = [found.randrange(end) for _ in range(REPEATS)]
            one = cpu_us(broker, REPEATS, lambda: each(offsets, partial(read_at, client)))  # noqa: B023  # called at once
            yield Point(subject, "fetch at a random offset: us of CPU", size, one)
            times = [found.randrange(began_ms, now_ms()) for _ in range(REPEATS)]
            one = cpu_us(broker, REPEATS, lambda: each(times, partial(list_offset, client)))  # noqa: B023  # called at once
            yield Point(subject, "offset of a random time: us of CPU", size, one)
            one = cpu_us(broker, size, lambda: read_all(client))  # noqa: B023  # called at once
            yield Point(subject, "catch-up: s of CPU per GB", size, one / 1e6)
            client.close()
    shutil.rmtree(path, ignore_errors=True)


def list_offset(client: Client, timestamp: int) -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="t0",
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                ],
            )
        ],
    )
    answer = client.ask(request, ListOffsetsResponse, 7).topics[0].partitions[0]
    if answer.error_code:
        raise SystemExit(f"ListOffsets failed with {answer.error_code}")
    return answer.offset


def read_at(client: Client, offset: int) -> None:
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_epoch=-1,
        topics=[
            FetchRequest.FetchTopic(
                topic="t0",
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=0, fetch_offset=offset, partition_max_bytes=1
                    )
                ],
            )
        ],
    )
    answer = client.ask(request, FetchResponse, FETCH_VERSION)
    if answer.responses[0].partitions[0].error_code:
        raise SystemExit("a fetch failed")


def read_all(client: Client) -> None:
    consumer = Consumer(client, "t0", 1)
    while consumer.poll():
        pass


def requests(folder: Path, quick: bool) -> Iterator[Point]:
    """One record per request (linger 0): how many a second, by connections at work."""
    subject = "requests"
    with broker_in(folder / "requests") as broker:
        create_topics(broker, [("t0", 64)])
        count = 2000
        for size in (1, 4, 16, 64):
            clients = [Client(broker.host, broker.port) for _ in range(size)]
            frames = [
                ProduceRequests(ONE_RECORD, "t0", producer_id=100 + i, first_partition=i)
                for i in range(size)
            ]
            started = time.perf_counter()
            each = count // size

            def all_of_them(
                clients: list[Client] = clients,
                frames: list[ProduceRequests] = frames,
                each: int = each,
            ) -> None:
                for _ in range(each):
                    for client, frame in zip(clients, frames, strict=True):
                        client.send(frame.following())
                    for client in clients:
                        client.receive()

            one = cpu_us(broker, each * size, all_of_them)
            rate = each * size / (time.perf_counter() - started)
            yield Point(subject, "one record each: us of CPU", size, one)
            yield Point(subject, "one record each: requests per second", size, rate)
            for client in clients:
                client.close()


SUBJECTS: dict[str, Callable[[Path, bool], Iterator[Point]]] = {
    "partitions": partitions,
    "connections": connections,
    "topics": topics,
    "sessions": sessions,
    "log": log,
    "requests": requests,
}

X_NAMES = {
    "partitions": "partitions",
    "connections": "open connections",
    "topics": "topics named in a request",
    "sessions": "partitions of a session, or sessions",
    "log": "GB in the log",
    "requests": "connections at work",
}


def exponent(points: list[tuple[float, float]]) -> float:
    """Of a power law through the first and the last of them that cost anything."""
    costly = [point for point in points if point[1] > 0]
    if len(costly) < 2:
        return 0.0
    (x0, y0), (x1, y1) = costly[0], costly[-1]
    return math.log(y1 / y0) / math.log(x1 / x0)


def growth(points: list[tuple[float, float]]) -> str:
    """In a word, from the largest two sizes; over all of them a fixed part may hide it."""
    power = exponent(points[-2:])
    if abs(power) < 0.25:
        return "constant"
    if power < 0:
        return "falls"
    if power < 0.75:
        return "slower than linear"
    return "linear" if power < 1.25 else "faster than linear"


def curves(points: Iterable[Point]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for point in points:
        row = found.setdefault(point.subject, {}).setdefault(point.curve, [])
        row.append((point.size, point.cost))
    return found


def table(points: Iterable[Point]) -> str:
    """Markdown: a row for each curve, its costs, and its exponents."""
    out = ["| | cost by size | growth | exponent overall, at the end |", "|---|---|---|---|"]
    for subject, rows in curves(points).items():
        for curve, row in rows.items():
            costs = ", ".join(f"{size:,.0f}: {cost:,.3g}" for size, cost in row)
            out.append(
                f"| {subject}, {curve} | {costs} | {growth(row)} | "
                f"{exponent(row):.2f}, {exponent(row[-2:]):.2f} |"
            )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", choices=sorted(SUBJECTS), default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--log-gb", type=int, default=20, help="the largest log")
    parser.add_argument("--json", type=Path, help="points are kept here; other subjects stay")
    parser.add_argument("--plots", type=Path, help="folder for an SVG of each subject")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    LOG_SIZES[:] = [size for size in LOG_SIZES if size <= arguments.log_gb]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    points: list[Point] = []
    if arguments.json and arguments.json.exists():
        points = [Point(**point) for point in json.loads(arguments.json.read_text())]
    for subject in arguments.only or SUBJECTS:
        points = [point for point in points if point.subject != subject]
        with tempfile.TemporaryDirectory(prefix="kbroker-scale-") as folder:
            for point in SUBJECTS[subject](Path(folder), arguments.quick):
                points.append(point)
                print(f"{subject} {point.size:,.0f}: {point.curve} {point.cost:,.3g}", flush=True)
        if arguments.json:
            as_dicts = [
                {"subject": p.subject, "curve": p.curve, "size": p.size, "cost": p.cost}
                for p in points
            ]
            arguments.json.write_text(json.dumps(as_dicts, indent=1))
    print(table(points))
    if arguments.plots:
        arguments.plots.mkdir(parents=True, exist_ok=True)
        for subject, rows in curves(points).items():
            named = {f"{curve} - {growth(row)}": row for curve, row in rows.items()}
            plot = lines(f"Cost by {X_NAMES[subject]}", named, x_name=X_NAMES[subject], y_name="")
            (arguments.plots / f"scale-{subject}.svg").write_text(plot)


if __name__ == "__main__":
    main()
