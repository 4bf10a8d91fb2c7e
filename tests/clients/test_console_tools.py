"""Apache Kafka 4.3.1's own console producer and consumer (the Java client), as people run them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_to_console_consumer(
    bootstrap: str, new_name: Callable[[str], str], kafka_tools: KafkaTools, codec: str
) -> None:
    topic = new_name(f"console-{codec}")
    lines = "".join(f"h1:v1,h2:v2\tkey{number}\tvalue {number}\n" for number in range(100))
    parsing = ["--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"]
    kafka_tools.output(
        PRODUCER,
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--compression-codec",
        codec,
        *parsing,
        stdin=lines,
    )
    printed = kafka_tools.output(
        CONSUMER,
        *(
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            "--from-beginning",
            "--max-messages",
            "100",
        ),
        *("--timeout-ms", "30000", "--formatter-property", "print.key=true"),
        *(
            "--formatter-property",
            "print.headers=true",
            "--formatter-property",
            "print.offset=true",
        ),
    )
    wanted = [f"Offset:{n}\th1:v1,h2:v2\tkey{n}\tvalue {n}" for n in range(100)]
    assert [line for line in printed.splitlines() if line.startswith("Offset:")] == wanted


def test_console_consumer_resumes_in_its_group(
    bootstrap: str, new_name: Callable[[str], str], kafka_tools: KafkaTools
) -> None:
    topic, group = new_name("console-group"), new_name("console-g")
    consume = [
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--group",
        group,
        "--timeout-ms",
        "30000",
    ]
    kafka_tools.output(
        PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic, stdin="a\nb\nc\n"
    )
    assert kafka_tools.output(
        CONSUMER, *consume, "--from-beginning", "--max-messages", "3"
    ).split() == [
        "a",
        "b",
        "c",
    ]
    kafka_tools.output(PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic, stdin="d\n")
    assert kafka_tools.output(CONSUMER, *consume, "--max-messages", "1").split() == ["d"]
