"""`kbroker format` writes what `kafka-storage.sh format` of Apache Kafka 4.3.1 writes, byte for
byte except the time, and refuses what that refuses.
"""

from __future__ import annotations

import shutil
import stat
import struct
import subprocess
from pathlib import Path
from random import Random

import pytest

from kbroker.model import StartupError
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.quorum.disk.snapshots import read_snapshot
from kbroker.quorum.formatting.format import FormatOptions, format_directories
from kbroker.settings.broker import BrokerConfig
from scripts.kafka_jars import broker_class_path
from spark_jobs.java import java_problem

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(120),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

CLUSTER = "kbrokerFixtures43100-w"
FIRST_ID, SECOND_ID = "JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A"
GROUPS = "group.version=1"
TWO = f"2@b:9094:{SECOND_ID},1@a:9093:{FIRST_ID}"
CONTROLLER = {
    "process.roles": "controller",
    "node.id": "1",
    "listeners": "CTL://:9093",
    "controller.listener.names": "CTL",
    "listener.security.protocol.map": "CTL:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "controller.quorum.bootstrap.servers": "a:9093",
}
BOTH = {
    **CONTROLLER,
    "process.roles": "broker,controller",
    "listeners": "PLAINTEXT://:9092,CTL://:9093",
    "advertised.listeners": "PLAINTEXT://p:1,CTL://c:2",
}
BROKER = {
    **CONTROLLER,
    "process.roles": "broker",
    "node.id": "3",
    "listeners": "PLAINTEXT://:9092",
}
STATIC = {"controller.quorum.bootstrap.servers": "", "controller.quorum.voters": "1@a:1,2@b:2"}


def by_kafka(properties: dict[str, str], folder: Path, arguments: list[str]) -> tuple[int, str]:
    """Exit code and output."""
    java = shutil.which("java")
    assert java is not None
    file = folder / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", broker_class_path()]
    command += ["kafka.tools.StorageTool", "format", "-c", str(file), "-t", CLUSTER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def options_of(arguments: list[str]) -> FormatOptions:
    values = dict(zip(arguments[::2], arguments[1::2], strict=False))
    return FormatOptions(
        cluster_id=CLUSTER,
        standalone="--standalone" in arguments,
        no_initial_controllers="--no-initial-controllers" in arguments,
        initial_controllers=values.get("--initial-controllers"),
        release_version=values.get("--release-version"),
        features=(values["--feature"],) if "--feature" in values else (),
    )


def timeless(path: Path) -> bytes:
    """A file without the time it was written at; directory ids that were drawn are left out."""
    data = bytearray(path.read_bytes())
    if path.name == "meta.properties":
        lines = [line for line in data.splitlines() if not line.startswith(b"#")]
        return b"\n".join(sorted(line for line in lines if not line.startswith(b"directory.id")))
    time_ms = read_snapshot(path).last_contained_timestamp_ms
    for position, _ in list(iter_batches(bytes(data))):
        data[position + 17 : position + 21] = bytes(4)  # CRC
        data[position + 27 : position + 43] = bytes(16)  # base and max timestamp
    if time_ms:
        assert data.count(struct.pack(">q", time_ms)) == 1
    return bytes(data).replace(struct.pack(">q", time_ms), bytes(8)) if time_ms else bytes(data)


def files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("properties", "arguments"),
    [
        pytest.param(BOTH, ["--initial-controllers", TWO], id="initial-controllers"),
        pytest.param(BROKER, ["--initial-controllers", TWO], id="initial-controllers-broker"),
        pytest.param(CONTROLLER, ["--no-initial-controllers"], id="no-initial-controllers"),
        pytest.param(BROKER, [], id="broker"),
        pytest.param({**BOTH, **STATIC}, [], id="static"),
        pytest.param(
            CONTROLLER,
            ["--initial-controllers", TWO, "--release-version", "3.9", "--feature", GROUPS],
            id="release",
        ),
    ],
)
def test_the_files_are_kafkas(
    properties: dict[str, str], arguments: list[str], tmp_path: Path
) -> None:
    kafkas, ours = tmp_path / "kafka", tmp_path / "ours"
    for folder in (kafkas, ours):
        folder.mkdir()
    made = {
        folder: {**properties, "log.dirs": f"{folder / 'd1'},{folder / 'd2'}"}
        for folder in (kafkas, ours)
    }
    code, output = by_kafka(made[kafkas], tmp_path, arguments)
    assert code == 0, output
    lines = format_directories(
        BrokerConfig.from_properties(made[ours]), options_of(arguments), random=Random(1)
    )
    told = [line for line in output.splitlines() if line.startswith("Formatting")]
    assert sorted(line.replace(str(ours), str(kafkas)) for line in lines) == sorted(told)
    written, expected = files(ours), files(kafkas)
    assert set(written) == set(expected)
    for name, path in expected.items():
        assert timeless(written[name]) == timeless(path), name
        assert stat.S_IMODE(written[name].stat().st_mode) == stat.S_IMODE(path.stat().st_mode), name


@pytest.mark.parametrize(
    ("properties", "arguments"),
    [
        pytest.param(CONTROLLER, [], id="no-voters"),
        pytest.param(BROKER, ["--standalone"], id="standalone-broker"),
        pytest.param({**BOTH, **STATIC}, ["--standalone"], id="standalone-static"),
        pytest.param({**BOTH, **STATIC}, ["--feature", "kraft.version=1"], id="kraft-static"),
        pytest.param(CONTROLLER, ["--standalone", "", "--release-version", "2.8"], id="old"),
    ],
)
def test_what_kafka_refuses_is_refused_in_its_words(
    properties: dict[str, str], arguments: list[str], tmp_path: Path
) -> None:
    settings = {**properties, "log.dirs": str(tmp_path / "d")}
    code, output = by_kafka(settings, tmp_path, [each for each in arguments if each])
    assert code == 1, output
    with pytest.raises(StartupError) as caught:
        format_directories(
            BrokerConfig.from_properties(settings), options_of(arguments), random=Random(1)
        )
    assert str(caught.value) in output.replace("\n", " ")
    assert not (tmp_path / "d").exists()
