"""Kafka's tools read the metadata log and the snapshots of kbroker: DumpLogSegments prints them in
the same words as `kbroker dump-log`, MetadataShell shows the same image.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.cli.record_decoders import metadata_text
from kbroker.log.tools.dump import dump_file
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID
from kbroker.testing import EmbeddedBroker
from scripts.kafka_jars import shell_class_path
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until
from tests.reference.controllers import Controllers, Watch, all_fetch, run_class

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

OFTEN = {"metadata.log.max.record.bytes.between.snapshots": "1"}
"""A snapshot after every record."""
SHELL_S = 60.0
"""For a command that shows all of a snapshot."""


def snapshots(folder: Path) -> list[Path]:
    """What the node wrote itself, the oldest first."""
    return sorted(p for p in folder.glob("*.checkpoint") if p.name != BOOTSTRAP_ID.file_name)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The metadata log's folder of a node that has stopped. Topic tN has N + 1 partitions."""
    data = tmp_path_factory.mktemp("node")
    folder = data / "__cluster_metadata-0"
    with EmbeddedBroker(OFTEN, data=data) as broker:
        for number in range(3):
            broker.create_topic(f"t{number}", partitions=number + 1)
        wait_until(
            lambda: any(b"t2" in each.read_bytes() for each in snapshots(folder)),
            30,
            "a snapshot with all topics",
        )
    yield folder


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The metadata log's folder of one of three controllers."""
    controllers = Controllers(tmp_path_factory.mktemp("quorum"), (1, 2, 3), settings=OFTEN)

    async def script(watch: Watch) -> None:
        await watch.described(lambda found: all_fetch(found) and found.high_watermark > 20)

    try:
        controllers.start()
        controllers.run(script)
        folder = controllers.metadata_log(1)
        wait_until(lambda: snapshots(folder), 30, "a snapshot")
    finally:
        controllers.stop()
    yield folder


@pytest.mark.parametrize("whose", ["node", "quorum"])
def test_both_dump_the_same(whose: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(whose)
    files = [*folder.glob("*.checkpoint"), *folder.glob("*.log")]
    assert len(files) >= 3
    for path in files:
        told = run_class(
            "org.apache.kafka.tools.DumpLogSegments",
            *("--deep-iteration", "--cluster-metadata-decoder", "--files", str(path)),
        )
        _, *lines = told.splitlines()
        assert len(lines) >= 2
        assert not any("isvalid: false" in line or "Error" in line for line in lines)
        assert list(dump_file(path, record_text=metadata_text)) == lines


def shell_shows(snapshot: Path, is_whole: Callable[[str], bool], *command: str) -> None:
    """A command of MetadataShell prints what is expected, at a later try if need be: the shell
    waits for the first batch of a snapshot only, and gets the others while the command runs.
    """
    name = "org.apache.kafka.shell.MetadataShell"
    arguments = (name, "--snapshot", str(snapshot), *command)
    deadline = time.monotonic() + SHELL_S
    while not is_whole(printed := run_class(*arguments, class_path=shell_class_path())):
        assert time.monotonic() < deadline, printed


def test_metadata_shell_reads_a_snapshot(node: Path) -> None:
    newest = snapshots(node)[-1]
    topics, brokers = ["t0", "t1", "t2"], ["1"]
    shell_shows(newest, lambda out: out.split() == topics, "ls", "/image/topics/byName")
    shell_shows(newest, lambda out: "partitionEpoch" in out, "cat", "/image/topics/byName/t2/1")
    shell_shows(newest, lambda out: "4.3-IV0" in out, "cat", "/image/features/metadataVersion")
    shell_shows(newest, lambda out: out.split() == brokers, "ls", "/image/cluster/brokers")
