"""`make demo`: kbroker's main job from end to end, with ordinary clients and nothing left running.

A broker is started on an empty folder; 10,000 shop events are produced with confluent-kafka and
consumed in a group; the Spark job `archive` writes the topic to Parquet; the Parquet rows are
compared with the events, one by one.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.model import StartupError
from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "demo-output"
TOPIC = "shop-events"
PARTITIONS = 4
EVENTS = 10_000

CITIES = ("Lisbon", "Oslo", "Kraków", "Nairobi", "São Paulo", "Osaka", "Montréal", "Jaipur")
PRODUCTS = (
    ("coffee beans 1 kg", 1890),
    ("espresso cup", 750),
    ("grinder", 12900),
    ("paper filters", 390),
)


class DemoError(Exception):
    """A check of the demo failed."""


def make_events(count: int, now_ms: int, seed: int = 7) -> list[dict[str, Any]]:
    """Events of a web shop over the last hour: views, baskets, orders, and payments that belong to
    orders.
    """
    source = random.Random(seed)
    events = []
    for number in range(count):
        kind = source.choices(("page_view", "add_to_basket", "order", "payment"), (60, 25, 10, 5))[
            0
        ]
        product, cents = source.choice(PRODUCTS)
        event: dict[str, Any] = {
            "event_id": str(uuid.UUID(int=source.getrandbits(128), version=4)),
            "type": kind,
            "customer": f"c-{source.randrange(1, 1500):05d}",
            "city": source.choice(CITIES),
            "at_ms": now_ms - 3_600_000 + number * 3_600_000 // count,
        }
        if kind == "page_view":
            event["path"] = f"/products/{source.randrange(1, 400)}"
        else:
            quantity = source.randrange(1, 4)
            event |= {"product": product, "quantity": quantity, "cents": cents * quantity}
        events.append(event)
    return events


@contextmanager
def step(text: str) -> Any:
    """Print what is done, and how long it took."""
    print(f"  {text} ...", end="", flush=True)
    start = time.monotonic()
    notes: list[str] = []
    try:
        yield notes.append
    except BaseException:
        print(" failed")
        raise
    print(f" {'; '.join(notes) or 'done'} ({time.monotonic() - start:.1f} s)")


def produce(bootstrap: str, events: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Send the events keyed by customer; gives (partition, offset) of each acknowledged record."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"}
    )
    acknowledged: set[tuple[int, int]] = set()

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            raise DemoError(f"a record was refused: {error}")
        acknowledged.add((message.partition(), message.offset()))

    for event in events:
        producer.produce(
            TOPIC,
            key=event["customer"].encode(),
            value=json.dumps(event, ensure_ascii=False).encode(),
            headers=[("type", event["type"].encode())],
            timestamp=event["at_ms"],
            on_delivery=on_delivery,
        )
        producer.poll(0)
    if producer.flush(30):
        raise DemoError("not every record was acknowledged within 30 s")
    return acknowledged


def consume(bootstrap: str, count: int) -> list[str]:
    """Read the topic in a consumer group and commit; gives the event ids seen."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "demo", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    seen: list[str] = []
    deadline = time.monotonic() + 60
    try:
        while len(seen) < count and time.monotonic() < deadline:
            for message in consumer.consume(1000, 1.0):
                if message.error() is not None:
                    raise DemoError(f"the consumer failed: {message.error()}")
                seen.append(json.loads(message.value())["event_id"])
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return seen


def archive(bootstrap: str, output: Path) -> dict[str, Any]:
    """Run the Spark job on what the topic holds now; gives the summary it prints."""
    command = [
        sys.executable,
        "-m",
        "spark_jobs",
        "archive",
        "--bootstrap-servers",
        bootstrap,
        "--topics",
        TOPIC,
    ]
    command += ["--output", str(output), "--json"]
    with (OUTPUT / "spark.log").open("w") as log:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    if done.returncode != 0:
        raise DemoError(
            f"the Spark job ended with code {done.returncode}; see {OUTPUT / 'spark.log'}"
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(folder: Path, events: list[dict[str, Any]], acknowledged: set[tuple[int, int]]) -> None:
    """Raise DemoError unless the Parquet rows are the events: each once, with key, headers, time
    and offset.
    """
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder)
    rows = table.to_pylist()
    places = [(row["partition"], row["offset"]) for row in rows]
    if len(places) != len(acknowledged) or set(places) != acknowledged:
        raise DemoError(
            f"{len(rows)} rows, {len(set(places))} different, for {len(acknowledged)} records"
        )
    by_id = {event["event_id"]: event for event in events}
    for row in rows:
        value = json.loads(row["value"])
        event = by_id.pop(value["event_id"], None)
        if event is None or value != event or row["key"] != event["customer"].encode():
            raise DemoError(
                f"row {row['partition']}/{row['offset']} is not the event that was sent"
            )
        if round(row["timestamp"].timestamp() * 1000) != event["at_ms"] or row["topic"] != TOPIC:
            raise DemoError(
                f"row {row['partition']}/{row['offset']} has another time or topic than its event"
            )
        if row["headers"] != [{"key": "type", "value": event["type"].encode()}]:
            raise DemoError(
                f"row {row['partition']}/{row['offset']} has other headers than its event"
            )
    if by_id:
        raise DemoError(f"{len(by_id)} events are in no row")


def run(broker: BrokerProcess, tell: Callable[[str], None]) -> None:
    """Run the steps of the demo."""
    events = make_events(EVENTS, int(time.time() * 1000))
    with step("start kbroker on an empty folder") as note:
        broker.start()
        note(f"{broker.bootstrap_servers}, {broker.resident_bytes() / 1e6:.0f} MB of memory")
    bootstrap = broker.bootstrap_servers
    with step(f"create topic {TOPIC} with {PARTITIONS} partitions"):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
    with step(f"produce {EVENTS:,} events (confluent-kafka, idempotent, lz4)") as note:
        acknowledged = produce(bootstrap, events)
        note(f"{len(acknowledged):,} acknowledged")
    with step("consume them in group demo") as note:
        seen = consume(bootstrap, EVENTS)
        if sorted(seen) != sorted(event["event_id"] for event in events):
            raise DemoError(
                f"the group saw {len(seen)} events, {len(set(seen))} different, of {EVENTS}"
            )
        note(f"{len(seen):,} consumed, each once")
    problem = java_problem()
    if problem is not None:
        tell(f"  Spark part left out: {problem}")
        return
    folder = OUTPUT / "archive.parquet"
    with step(
        "archive the topic with Spark (availableNow; the first run fetches the connector)"
    ) as note:
        result = archive(bootstrap, folder)
        note(f"{result['rows']:,} rows")
    with step("compare the Parquet rows with the events"):
        compare(folder, events, acknowledged)
    tell(f"  every row is an event and every event a row: {folder.relative_to(ROOT)}/")


def main() -> int:
    """Run the demo and stop the broker, whatever happens. Returns the exit code."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir()
    broker = BrokerProcess(
        OUTPUT / "data", properties=ROOT / "config" / "server.properties", log=OUTPUT / "broker.log"
    )
    print("kbroker demo")
    try:
        run(broker, print)
    except (DemoError, StartupError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        broker.stop()
    print(
        f"  the broker has stopped; its data is in {(OUTPUT / 'data').relative_to(ROOT)}/, "
        "what it logged in broker.log beside it"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
