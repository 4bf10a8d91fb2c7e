"""Bring Apache Kafka's own jars into .cache/: its console tools for the tests, its broker for
side-by-side runs, its Streams library for applications, its MetadataShell.

    python scripts/kafka_jars.py            prints the class path of the tools
    python scripts/kafka_jars.py --broker   prints the class path of the broker
    python scripts/kafka_jars.py --streams  prints the class path of Kafka Streams
    python scripts/kafka_jars.py --shell    prints the class path of MetadataShell

They come from Maven Central through the Ivy that pyspark ships, so nothing but Java and the
development packages is needed. What is there already is not fetched again.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.24.3"
SLF4J_VERSION = "1.7.36"
TOOLS = (
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
)
STREAMS = (
    ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)
SHELL = (
    ("org.apache.kafka", "kafka-shell", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", SLF4J_VERSION),
)
BROKER = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), *TOOLS)


def ivy_jar() -> Path:
    """The Ivy in pyspark's jars. Raises FileNotFoundError without pyspark."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    for jar in sorted(jars.glob("ivy-*.jar")):
        return jar
    raise FileNotFoundError(f"no ivy jar in {jars}")


class FetchError(Exception):
    """A module can't be fetched; the message ends with what Ivy printed."""


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the lock file: processes that share an Ivy cache see each other's half-written jars."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def retrieve(
    module: tuple[str, str, str], folder: Path, attempts: int = 4, pause_s: float = 5.0
) -> None:
    """Bring a module and all it needs into folder, in several attempts: a repository may refuse
    one request among hundreds.

    Raises FetchError with Ivy's output after the last attempt.
    """
    command = [
        "java",
        f"-Divy.default.ivy.user.dir={ROOT / '.cache' / 'ivy'}",
        "-jar",
        str(ivy_jar()),
        "-warn",
    ]
    command += ["-dependency", *module, "-confs", "default"]
    command += ["-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]"]
    for attempt in range(1, attempts + 1):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return
        if attempt < attempts:
            time.sleep(pause_s * attempt)
    raise FetchError(f"{':'.join(module)}: {(done.stdout + done.stderr).strip()[-4000:]}")


def class_path(modules: tuple[tuple[str, str, str], ...], folder: Path) -> str:
    """Java class path of the modules and all they need, fetched into folder at the first call.

    Raises FetchError if something can't be had.
    """
    with _alone(folder.with_name(".kafka-jars.lock")):
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            for module in modules:
                retrieve(module, folder)
            (folder / ".complete").touch()
    return str(folder / "*")


def tools_class_path() -> str:
    """Class path of Kafka's command line tools (ConsoleProducer, ConsoleConsumer, DumpLogSegments,
    ...).
    """
    return class_path(TOOLS, ROOT / ".cache" / f"kafka-tools-{KAFKA_VERSION}")


def broker_class_path() -> str:
    """Class path of the whole broker (kafka.Kafka, kafka.tools.StorageTool) and the tools."""
    return class_path(BROKER, ROOT / ".cache" / f"kafka-broker-{KAFKA_VERSION}")


def streams_class_path() -> str:
    """Class path of Kafka Streams: clients, RocksDB, a logger that writes to standard error."""
    return class_path(STREAMS, ROOT / ".cache" / f"kafka-streams-{KAFKA_VERSION}")


def shell_class_path() -> str:
    """Class path of MetadataShell, which reads metadata snapshots."""
    return class_path(SHELL, ROOT / ".cache" / f"kafka-shell-{KAFKA_VERSION}")


def main() -> int:
    """Print the class path. Returns 1 with one line if the jars can't be had."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--broker", action="store_true", help="the broker too, not only the tools")
    kind.add_argument("--streams", action="store_true", help="Kafka Streams instead of the tools")
    kind.add_argument("--shell", action="store_true", help="MetadataShell instead of the tools")
    arguments = parser.parse_args()
    try:
        if arguments.streams:
            print(streams_class_path())
        elif arguments.shell:
            print(shell_class_path())
        else:
            print(broker_class_path() if arguments.broker else tools_class_path())
    except (FetchError, FileNotFoundError, ImportError) as error:
        print(f"kafka_jars: can't fetch Kafka's jars: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
