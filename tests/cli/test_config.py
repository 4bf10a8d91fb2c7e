"""`kbroker config check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
EXAMPLE = Path(__file__).parents[2] / "config" / "server.properties"


def test_a_file_that_is_fine(cli: Cli) -> None:
    result = cli("config", "check", str(EXAMPLE))
    assert (result.code, result.lines) == (0, [])
    assert result.err == f"{EXAMPLE}: a broker can start with it\n"


def test_every_value_that_cannot_be_read(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=0\nlog.retention.ms=soon\nnum.network.threads=3\n")
    result = cli("config", "check", str(path), "--json")
    assert result.code == 1
    first, second = map(json.loads, result.lines)
    assert first["level"] == second["level"] == "error"
    assert first["message"].startswith(f"{path}: num.partitions=0: ")
    assert first["message"].endswith("allowed: a whole number from 1 up")
    assert second["message"].startswith(f"{path}: log.retention.ms=soon: Not a number")
    assert result.err == f"kbroker: {path}: 2 errors; a broker would not start\n"
    mended = ("-o", "num.partitions=1", "-o", "log.retention.ms=5")
    assert cli("config", "check", str(path), *mended).code == 0


def test_a_rule_between_keys(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("process.roles=broker\n")
    result = cli("config", "check", str(path))
    assert (result.code, len(result.lines)) == (1, 1)
    assert result.lines[0].startswith("error\t")


def test_warnings(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitons=3\nzookeeper.connect=localhost:2181\n")
    result = cli("config", "check", str(path))
    assert result.code == 0
    assert "warning\tnum.partitons: unknown key, ignored; did you mean num.partitions?" in (
        result.lines
    )
    assert any("zookeeper.connect" in line for line in result.lines)
    assert result.err == f"{path}: a broker can start with it\n"


@pytest.mark.parametrize("path", ["/no/such/file", "."])
def test_a_file_that_cannot_be_read(cli: Cli, path: str) -> None:
    result = cli("config", "check", path)
    assert (result.code, result.err.count("\n")) == (1, 1)
