"""Apache Kafka 4.3.1's own console producer and consumer (the Java client), as people run them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from scripts.kafka_jars import tools_class_path
from spark_jobs.java import java_problem

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.fixture(scope="module")
def kafka_tool() -> Callable[..., str]:
    """Run a main class of Kafka's tools; gives its standard output."""
    java, jars = shutil.which("java"), tools_class_path()
    assert java is not None

    def run(main_class: str, *arguments: str, stdin: str = "") -> str:
        command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars, main_class, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_to_console_consumer(
    bootstrap: str, new_name: Callable[[str], str], kafka_tool: Callable[..., str], codec: str
) -> None:
    topic = new_name(f"console-{codec}")
    lines = "".join(f"h1:v1,h2:v2\tkey{number}\tvalue {number}\n" for number in range(100))
    parsing = ["--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"]
    kafka_tool(
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
    printed = kafka_tool(
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
    bootstrap: str, new_name: Callable[[str], str], kafka_tool: Callable[..., str]
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
    kafka_tool(PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic, stdin="a\nb\nc\n")
    assert kafka_tool(CONSUMER, *consume, "--from-beginning", "--max-messages", "3").split() == [
        "a",
        "b",
        "c",
    ]
    kafka_tool(PRODUCER, "--bootstrap-server", bootstrap, "--topic", topic, stdin="d\n")
    assert kafka_tool(CONSUMER, *consume, "--max-messages", "1").split() == ["d"]
