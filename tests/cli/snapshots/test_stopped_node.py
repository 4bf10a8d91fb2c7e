"""`kbroker topics snapshot --data`: of a node that was stopped, or killed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.testing import EmbeddedBroker
from tests.cli.snapshots.test_commands import content, own_configs
from tests.cli.test_app import CLI_DOCUMENT

Cli = Callable[..., Any]

TOPIC = "orders"
SEGMENT_BYTES = 1024 * 1024


@pytest.fixture
def node(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    """A running broker whose topic has several segments in partition 0, none in partition 1."""
    (tmp_path / "data").mkdir()
    with EmbeddedBroker(data=tmp_path / "data") as broker:
        monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
        configs = ("-c", f"segment.bytes={SEGMENT_BYTES}", "-c", "retention.ms=-1")
        assert cli("topics", "create", TOPIC, "-p", "2", *configs).code == 0
        lines = tmp_path / "lines"
        lines.write_text("".join(f"{number}:{'x' * 2000}\n" for number in range(1500)))
        produced = cli("produce", TOPIC, "-p", "0", "-k", ":", "-f", str(lines))
        assert produced.code == 0, produced.err
        yield broker


def snapshot(cli: Cli, node: EmbeddedBroker, output: Path, *arguments: str) -> Any:
    given = ("--data", str(node.data), "--output", str(output), *arguments)
    return cli("topics", "snapshot", TOPIC, *given)


def test_full_segments_are_linked(cli: Cli, node: EmbeddedBroker, tmp_path: Path) -> None:
    before = content(cli, TOPIC)
    node.stop()
    output = tmp_path / "snapshot"
    result = snapshot(cli, node, output, "--json")
    assert result.code == 0, result.err
    row = json.loads(result.out)
    segments = sorted((output / f"{TOPIC}-0").iterdir())
    linked = [each for each in segments if each.samefile(node.data / f"{TOPIC}-0" / each.name)]
    assert linked == segments[:-1] != []
    assert row["linked_bytes"] == sum(each.stat().st_size for each in linked)
    manifest = json.loads((output / "snapshot.json").read_text())
    assert manifest["taken"] == "offline"
    assert manifest["configs"] == {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
    ends = [
        (each["log_start_offset"], each["log_end_offset"], each["high_watermark"])
        for each in manifest["partitions"]
    ]
    assert ends == [(0, 1500, 1500), (0, 0, 0)]
    assert cli("dump-log", str(output), "--verify").code == 0

    node.start()  # what it does to its log from now on leaves the snapshot alone
    assert cli("produce", TOPIC, "-p", "0", "-f", str(tmp_path / "lines")).code == 0
    assert cli("topics", "delete-records", TOPIC, "--all", "--yes").code == 0
    assert cli("topics", "restore", str(output), "new").code == 0
    assert content(cli, "new") == before
    assert own_configs(cli, "new") == own_configs(cli, TOPIC)


def test_the_example_of_the_document(cli: Cli, node: EmbeddedBroker, tmp_path: Path) -> None:
    node.stop()
    (text,) = re.findall(r"^```sh\nkbroker (topics snapshot .*)\n```$", CLI_DOCUMENT, re.MULTILINE)
    text = text.replace("/var/lib/kbroker", str(node.data)).replace("/var/lib", str(tmp_path))
    result = cli(*text.split())
    assert result.code == 0, result.err
    assert "2 partitions, " in result.err
    assert " bytes of them linked" in result.err


def test_online_and_offline_are_the_same_bytes(
    cli: Cli, node: EmbeddedBroker, tmp_path: Path
) -> None:
    assert cli("topics", "snapshot", TOPIC, "-o", str(tmp_path / "online")).code == 0
    node.stop()
    assert snapshot(cli, node, tmp_path / "offline").code == 0

    def stored(name: str) -> list[bytes]:
        folders = [tmp_path / name / f"{TOPIC}-{partition}" for partition in (0, 1)]
        return [b"".join(f.read_bytes() for f in sorted(each.iterdir())) for each in folders]

    assert stored("online") == stored("offline")


def test_a_running_broker_is_left_alone(cli: Cli, node: EmbeddedBroker, tmp_path: Path) -> None:
    result = snapshot(cli, node, tmp_path / "snapshot")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert (
        f"{node.data} is in use by a broker, which holds its .lock: stop the broker" in result.err
    )
    assert not (tmp_path / "snapshot").exists()
    assert (node.data / ".lock").exists()


def test_a_killed_node(cli: Cli, node: EmbeddedBroker, tmp_path: Path) -> None:
    """All that was acknowledged, though no checkpoint has it; a torn batch is said and left out."""
    node.kill()
    segments = sorted((node.data / f"{TOPIC}-0").glob("*.log"))
    with segments[-1].open("ab") as file:
        file.write(segments[0].read_bytes()[:100])
    result = snapshot(cli, node, tmp_path / "snapshot")
    assert result.code == 0, result.err
    assert "left out, as the next start of the broker, which was killed, would" in result.err
    node.start()
    assert cli("topics", "restore", str(tmp_path / "snapshot"), "new").code == 0
    assert content(cli, "new") == content(cli, TOPIC)


INTERRUPTED = """
import sys, time
from kbroker.log.tools.snapshot_writer import SnapshotWriter
def wait(*_):
    print("written", flush=True)
    time.sleep(600)
SnapshotWriter.finish = wait
from kbroker.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_killed_snapshot_is_none(cli: Cli, node: EmbeddedBroker, tmp_path: Path) -> None:
    node.stop()
    output = tmp_path / "snapshot"
    arguments = ("topics", "snapshot", TOPIC, "--data", str(node.data), "-o", str(output))
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        in_use = snapshot(cli, node, tmp_path / "other")
        process.kill()
    assert (in_use.code, "is in use" in in_use.err) == (1, True)
    refused = cli("topics", "restore", str(output))
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "has no snapshot.json, which is written last; a snapshot that was int" in refused.err
    again = snapshot(cli, node, output)
    assert "is not empty and has no snapshot.json: an interrupted snapshot" in again.err
    shutil.rmtree(output)
    assert snapshot(cli, node, output).code == 0
    node.start()
    assert content(cli, TOPIC)[-1]["offset"] == 1499


def test_what_is_no_data_directory(cli: Cli, node: EmbeddedBroker, tmp_path: Path) -> None:
    node.stop()
    output = ("-o", str(tmp_path / "snapshot"))
    (tmp_path / "empty").mkdir()
    for path, message in (
        (tmp_path / "none", "no such directory"),
        (tmp_path / "empty", "is no log directory: it has no meta.properties"),
    ):
        result = cli("topics", "snapshot", TOPIC, "--data", str(path), *output)
        assert (result.code, result.err.count("\n")) == (1, 1)
        assert message in result.err
    inside = snapshot(cli, node, node.data / "snapshot")
    assert (inside.code, inside.err.count("\n")) == (1, 1)
    assert not (node.data / "snapshot").exists()
    result = cli("topics", "snapshot", "prices", "--data", str(node.data), *output)
    assert "there is no topic prices on node " in result.err
    shutil.move(node.data / f"{TOPIC}-1", tmp_path / "elsewhere")
    result = snapshot(cli, node, tmp_path / "snapshot")
    assert "partition 1 of orders is in none of the directories" in result.err
    shutil.rmtree(node.data / "__cluster_metadata-0")
    result = snapshot(cli, node, tmp_path / "snapshot")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "there is no __cluster_metadata-0 in" in result.err
    assert not (tmp_path / "snapshot").exists()


def test_damage_is_not_taken_along(cli: Cli, node: EmbeddedBroker, tmp_path: Path) -> None:
    node.stop()
    first = min((node.data / f"{TOPIC}-0").glob("*.log"))
    stored = bytearray(first.read_bytes())
    stored[1000] ^= 1
    first.write_bytes(stored)
    result = snapshot(cli, node, tmp_path / "snapshot")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "the log is damaged: kbroker dump-log --verify" in result.err
    assert not (tmp_path / "snapshot").exists()
