"""`kbroker perf`: produce, consume, latency; what they print is in `perf_lines`."""

from __future__ import annotations

import asyncio
import random
import string
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kbroker.cli.console.output import Cell, note, progress, show
from kbroker.cli.records import perf_lines
from kbroker.cli.records.produce import AcksOption, CompressionOption, producer_config
from kbroker.cli.session import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    connect,
    not_empty,
    properties,
    run,
)
from kbroker.model import StartupError

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.client.consumer import Consumer
    from kbroker.client.producer import ProducerConfig, RecordMetadata

EPILOG = """
The summary lines are those of Kafka's ProducerPerformance, ConsumerPerformance and EndToEndLatency.
This client is written in Python: it measures a broker's latency, and its own throughput.

\b
Examples:
  kbroker perf produce orders --num-records 10000 --record-size 100
  kbroker perf latency orders --num-records 1000
"""
app = typer.Typer(
    help="Measure throughput and latency.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
)

PAYLOADS: Final = 1_000
"""How many different values are sent, in turns."""
POLL_TIMEOUT_S: Final = 60.0

Topic = Annotated[str, typer.Argument(help="The topic.", callback=not_empty)]
RecordSize = Annotated[int, typer.Option("--record-size", "-s", min=1, help="Bytes of a value.")]

PRODUCE_EPILOG = """
A line every five seconds, and a summary at the end.

\b
Examples:
  kbroker perf produce orders --num-records 10000 --record-size 100
  kbroker perf produce orders --num-records 5000 --throughput 1000 --acks 1
  kbroker perf produce orders --num-records 5000 -X linger.ms=50 -X batch.size=65536 --json
"""


@app.command("produce", epilog=PRODUCE_EPILOG)
def produce(
    topic: Topic,
    num_records: Annotated[
        int, typer.Option("--num-records", "-n", min=1, help="How many are sent.")
    ] = 10_000,
    record_size: RecordSize = 100,
    throughput: Annotated[
        float, typer.Option("--throughput", help="Records per second at most; -1 for no bound.")
    ] = -1,
    compression: CompressionOption = None,
    acks: AcksOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Send records and measure how long they take."""
    config = producer_config(compression, acks, idempotent=False)
    payloads = _payloads(record_size, min(num_records, PAYLOADS))
    summary = run(
        _produce(bootstrap, topic, num_records, payloads, throughput, config, as_json),
        spinner=False,
    )
    _print(summary, [perf_lines.producer_line(summary)], as_json=as_json)


def _payloads(size: int, count: int) -> list[bytes]:
    """The same ones at every run."""
    source = random.Random(0)
    letters = string.ascii_uppercase.encode()
    return [bytes(source.choices(letters, k=size)) for _ in range(count)]


def _print(summary: dict[str, float], lines: list[str], *, as_json: bool) -> None:
    if as_json:
        row: dict[str, Cell] = {**summary}
        show([row], list(summary), as_json=True)
    else:
        for line in lines:
            print(line, flush=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _produce(
    bootstrap: str,
    topic: str,
    num_records: int,
    payloads: list[bytes],
    throughput: float,
    config: ProducerConfig,
    as_json: bool,
) -> dict[str, float]:
    from kbroker.client.producer import Producer

    failures: list[BaseException] = []
    async with connect(bootstrap) as client, Producer(client, config) as producer:
        start_s = time.monotonic()
        stats = perf_lines.ProducerStats(num_records, _now_ms())
        with progress(f"records to {topic}", num_records, visible=as_json) as done:
            for index in range(num_records):
                value = payloads[index % len(payloads)]
                sent_ms = _now_ms()

                def arrived(
                    future: asyncio.Future[RecordMetadata],
                    sent_ms: int = sent_ms,
                    size: int = len(value),
                ) -> None:
                    if future.cancelled():
                        return
                    error = future.exception()
                    if error is not None:
                        failures.append(error)
                        return
                    now_ms = _now_ms()
                    line = stats.record(now_ms - sent_ms, size, now_ms)
                    done.advance()
                    if line is not None and not as_json:
                        print(line, flush=True)

                (await producer.send(topic, value)).add_done_callback(arrived)
                if failures:
                    raise failures[0]
                if throughput > 0:
                    ahead_s = (index + 1) / throughput - (time.monotonic() - start_s)
                    if ahead_s > 0:
                        await asyncio.sleep(ahead_s)
            await producer.flush()
    if failures:
        raise failures[0]
    return stats.summary(_now_ms())


CONSUME_EPILOG = """
Reads from the beginning until so many records were read, or none came for --timeout ms. Partitions
are assigned, so the time of rebalances is 0.

\b
Examples:
  kbroker perf consume orders --num-records 10000
  kbroker perf consume orders --num-records 10000 --timeout 2000 --json
"""


@app.command("consume", epilog=CONSUME_EPILOG)
def consume(
    topic: Topic,
    num_records: Annotated[
        int, typer.Option("--num-records", "-n", min=1, help="How many are read.")
    ] = 10_000,
    timeout_ms: Annotated[
        int, typer.Option("--timeout", min=0, metavar="MS", help="Between two records.")
    ] = 10_000,
    hide_header: Annotated[
        bool, typer.Option("--hide-header", help="Print the numbers only.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Read records and measure how long that takes."""
    summary = run(_consume(bootstrap, topic, num_records, timeout_ms, as_json), spinner=False)
    header = [] if hide_header else [perf_lines.CONSUMER_HEADER]
    _print(summary, [*header, perf_lines.consumer_line(summary)], as_json=as_json)
    if summary["records"] < num_records:
        note(f"no record came for {timeout_ms} ms; {num_records:,} were to be read")


async def _consume(
    bootstrap: str, topic: str, num_records: int, timeout_ms: int, as_json: bool
) -> dict[str, float]:
    from kbroker.client.consumer import Consumer, ConsumerConfig

    config = properties().consumer(ConsumerConfig(max_wait_ms=100, auto_offset_reset="earliest"))
    count = size = 0
    async with connect(bootstrap) as client:
        consumer = Consumer(client, config)
        start_ms = last_ms = _now_ms()
        try:
            await client.topic(topic)  # a topic that is not there is no reason to wait
            await consumer.assign_topics([topic])
            with progress("records", num_records, visible=as_json) as done:
                while count < num_records and _now_ms() - last_ms <= timeout_ms:
                    records = await consumer.poll()
                    if records:
                        last_ms = _now_ms()
                    count += len(records)
                    size += sum(len(each.key or b"") + len(each.value or b"") for each in records)
                    done.advance(len(records))
        finally:
            consumer.close()
    return perf_lines.consumer_summary(start_ms, _now_ms(), size, count)


LATENCY_EPILOG = """
Sends one record at a time and waits until it is read again. The topic is created if it is not
there. A line for every thousandth record has its latency in ms.

\b
Examples:
  kbroker perf latency latencies --num-records 1000
  kbroker perf latency latencies --num-records 1000 --record-size 1000 --acks 1 --json
"""


@app.command("latency", epilog=LATENCY_EPILOG)
def latency(
    topic: Topic,
    num_records: Annotated[
        int, typer.Option("--num-records", "-n", min=1, help="How many are sent.")
    ] = 1_000,
    record_size: RecordSize = 100,
    acks: AcksOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Json = False,
) -> None:
    """Measure how long a record takes from a producer to a consumer."""
    config = replace(producer_config(None, acks, idempotent=False), linger_ms=0)
    if config.acks == 0:
        raise typer.BadParameter("latency needs acknowledgements", param_hint="--acks")
    payloads = _payloads(record_size, min(num_records, PAYLOADS))
    latencies = run(
        _latency(bootstrap, topic, num_records, payloads, config, as_json), spinner=False
    )
    summary = perf_lines.latency_summary(latencies)
    _print(summary, perf_lines.latency_lines(summary), as_json=as_json)


async def _latency(
    bootstrap: str,
    topic: str,
    num_records: int,
    payloads: list[bytes],
    config: ProducerConfig,
    as_json: bool,
) -> list[int]:
    from kbroker.client.consumer import Consumer, ConsumerConfig
    from kbroker.client.producer import Producer

    latencies: list[int] = []
    async with connect(bootstrap) as client:
        await _create_if_missing(client, topic)
        consumer = Consumer(client, properties().consumer(ConsumerConfig()))
        try:
            await consumer.assign_topics([topic], "latest")
            async with Producer(client, config) as producer:
                for index in range(num_records):
                    value = payloads[index % len(payloads)]
                    began_ns = time.perf_counter_ns()
                    reading = asyncio.create_task(_next_value(consumer))
                    try:
                        await producer.send_and_wait(topic, value)
                        received = await reading
                    finally:
                        reading.cancel()
                    latencies.append(time.perf_counter_ns() - began_ns)
                    if received != value:
                        raise StartupError(f"{topic} has records of another producer")
                    if index % 1000 == 0 and not as_json:
                        print(f"{index}\t{latencies[-1] / 1e6}", flush=True)
        finally:
            consumer.close()
    return latencies


async def _next_value(consumer: Consumer) -> bytes | None:
    """The value of the record that comes next. Raises StartupError if none comes in time."""
    deadline_s = time.monotonic() + POLL_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if records := await consumer.poll():
            return records[0].value
    raise StartupError(f"the record was not read within {POLL_TIMEOUT_S:g} s")


async def _create_if_missing(client: Client, topic: str) -> None:
    from kbroker.protocol.errors import ErrorCode, KafkaError
    from kbroker.protocol.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse

    (found,) = (await client.metadata([topic])).topics
    if found.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return
    note(f"{topic} does not exist; creating it with 1 partition")
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=-1)
        ],
        timeout_ms=30_000,
    )
    response = await client.to_controller(request, CreateTopicsResponse)
    (created,) = response.topics
    if created.error_code:
        raise KafkaError(ErrorCode(created.error_code), created.error_message or topic)
