"""The README's examples, run as they stand but for the broker's address."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from tests.nested_pytest import run_pytest

pytestmark = pytest.mark.clients

ROOT = Path(__file__).resolve().parents[2]


def blocks(language: str) -> list[str]:
    """The README's code blocks of one language ("" for plain ones)."""
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def block_with(language: str, text: str) -> str:
    """The one block of the language that has this text."""
    (found,) = [block for block in blocks(language) if text in block]
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process


def environment(broker: BrokerProcess) -> dict[str, str]:
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": binaries, "KBROKER_BOOTSTRAP": broker.bootstrap_servers}


def shell(broker: BrokerProcess, folder: Path, script: str) -> str:
    here = script.replace("localhost:9092", broker.bootstrap_servers)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", here],
        cwd=folder,
        env=environment(broker),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_line(broker: BrokerProcess, tmp_path: Path) -> None:
    printed = shell(broker, tmp_path, block_with("", "kbroker topics create"))
    lines = printed.splitlines()
    assert lines[:2] == ["hello", "hello"]
    assert any(line.startswith("readers") and "greetings" in line for line in lines)
    assert "Log starting offset: 0" in lines


def test_python_client(broker: BrokerProcess) -> None:
    code = block_with("python", "Consumer(").replace("localhost:9092", broker.bootstrap_servers)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "b'en' b'hello'\n"), done.stderr


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat(broker: BrokerProcess, tmp_path: Path) -> None:
    script = block_with("", "kcat -b").replace("kcat -b", "timeout 20 kcat -b")
    assert shell(broker, tmp_path, script).splitlines() == ["hello"]


def test_pytest_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(block_with("python", "kafka_topic"))
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_embedded_broker() -> None:
    code = block_with("python", "EmbeddedBroker")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\S+:\d+\n", done.stdout)


def test_configuration(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(block_with("properties", "log.dirs"))
    with BrokerProcess(tmp_path / "data", properties=properties) as broker:
        assert broker.port > 0
    logged = broker.log.read_text()
    assert "unknown" not in logged and "no effect" not in logged
