"""Bring Apache Kafka's own jars into .cache/: its console tools for the tests, its broker for
side-by-side runs, its Streams library for applications.

    python scripts/kafka_jars.py            prints the class path of the tools
    python scripts/kafka_jars.py --broker   prints the class path of the broker
    python scripts/kafka_jars.py --streams  prints the class path of Kafka Streams

They come from Maven Central through the Ivy that pyspark ships, so nothing but Java and the
development packages is needed. What is there already is not fetched again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
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
BROKER = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), *TOOLS)


def ivy_jar() -> Path:
    """The Ivy in pyspark's jars. Raises FileNotFoundError without pyspark."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    for jar in sorted(jars.glob("ivy-*.jar")):
        return jar
    raise FileNotFoundError(f"no ivy jar in {jars}")


def class_path(modules: tuple[tuple[str, str, str], ...], folder: Path) -> str:
    """Java class path of the modules and all they need, fetched into folder at the first call.

    Raises subprocess.CalledProcessError (with Ivy's output) if something can't be had.
    """
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        for module in modules:
            command = [
                "java",
                f"-Divy.default.ivy.user.dir={ROOT / '.cache' / 'ivy'}",
                "-jar",
                str(ivy_jar()),
                "-warn",
            ]
            command += ["-dependency", *module, "-confs", "default"]
            command += ["-retrieve", f"{partial}/[artifact]-[revision](-[classifier]).[ext]"]
            subprocess.run(command, check=True, capture_output=True, text=True)
        (partial / ".complete").touch()
        try:
            partial.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(partial)
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


def main() -> int:
    """Print the class path. Returns 1 with one line if the jars can't be had."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--broker", action="store_true", help="the broker too, not only the tools")
    kind.add_argument("--streams", action="store_true", help="Kafka Streams instead of the tools")
    arguments = parser.parse_args()
    try:
        if arguments.streams:
            print(streams_class_path())
        else:
            print(broker_class_path() if arguments.broker else tools_class_path())
    except (subprocess.CalledProcessError, FileNotFoundError, ImportError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        print(
            f"kafka_jars: can't fetch Kafka's jars: {detail.strip().splitlines()[-1]}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
