"""scripts/kafka_jars with a stand-in for java: repeated attempts, and one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import kafka_jars

MODULE = ("org.example", "thing", "1.0")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of the PATH whose `java` is the script that a test writes there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(kafka_jars, "ivy_jar", lambda: tmp_path / "ivy.jar")
    return folder / "java"


def script(path: Path, lines: str) -> None:
    """Make path a shell script that runs the lines."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def test_a_fetch_that_fails_is_repeated(java: Path, tmp_path: Path) -> None:
    script(java, f'echo run >> {tmp_path}/runs; test "$(wc -l < {tmp_path}/runs)" -ge 3')
    kafka_jars.retrieve(MODULE, tmp_path / "jars", attempts=3, pause_s=0)
    assert (tmp_path / "runs").read_text() == "run\n" * 3


def test_the_last_failure_says_which_module_and_what_ivy_printed(
    java: Path, tmp_path: Path
) -> None:
    script(java, "echo UNRESOLVED; exit 1")
    with pytest.raises(kafka_jars.FetchError, match=r"org\.example:thing:1\.0: UNRESOLVED"):
        kafka_jars.retrieve(MODULE, tmp_path / "jars", attempts=2, pause_s=0)


def test_of_two_processes_one_fetches_and_the_other_waits(java: Path, tmp_path: Path) -> None:
    script(
        java,
        f"mkdir {tmp_path}/busy || exit 1; echo run >> {tmp_path}/runs; sleep 0.3;"
        f" mkdir -p {tmp_path}/jars; rmdir {tmp_path}/busy",
    )
    code = (
        "from pathlib import Path\nfrom scripts import kafka_jars\n"
        f"kafka_jars.ivy_jar = lambda: Path('ivy.jar')\n"
        f"print(kafka_jars.class_path(({MODULE!r},), Path({str(tmp_path / 'jars')!r})))"
    )
    environment = dict(os.environ, PYTHONPATH=str(kafka_jars.ROOT))
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    assert [run.communicate(timeout=60)[0] for run in runs] == [f"{tmp_path / 'jars'}/*\n"] * 2
    assert (tmp_path / "runs").read_text() == "run\n"
