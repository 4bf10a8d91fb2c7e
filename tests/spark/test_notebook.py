"""The notebook of docs/spark.md, as a new user has it: installed by pip, eight lines, a table, and
its lag in `kbroker groups`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from kbroker.testing.process import BrokerProcess
from spark_jobs.java import java_problem
from tests.clients.adapters import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long_spark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

ROOT: Final = Path(__file__).resolve().parents[2]
SECTION: Final = (ROOT / "docs" / "spark.md").read_text().split("### In a notebook\n")[1]
CELLS: Final = re.findall(r"^```python\n(.*?)^```$", SECTION.split("\n## ")[0], re.DOTALL | re.M)
TERMINAL: Final = re.findall(r"^```\n(kbroker .*?)\n```$", SECTION, re.M)[0]
ADDRESS: Final = "localhost:9092"
VALUES: Final = ("one", "two", "three")
LAG_TIMEOUT_S: Final = 60.0


def kbroker(python: Path, bootstrap: str, *arguments: str, text: str = "") -> str:
    """What a command prints."""
    done = subprocess.run(
        [str(python), "-m", "kbroker", *arguments, "--bootstrap-server", bootstrap],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def notebook(
    python: Path, folder: Path, cell: str, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the cell, prints a line of its own and stays, as a kernel does."""
    script = folder / "cell.py"
    script.write_text(cell + "\nprint('the cell has run', flush=True)\ninput()\n")
    with (folder / "errors.log").open("w") as errors:
        kernel = subprocess.Popen(
            [str(python), str(script)],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield kernel
        finally:
            kernel.kill()  # its JVM ends with it
            kernel.communicate()


def run_notebook(python: Path, folder: Path, environment: Mapping[str, str], package: str) -> float:
    """From the first record to the lag that Kafka's tools see. Returns the seconds of the cell."""
    command = (str(python), "-m", "kbroker")
    with BrokerProcess(folder / "data", command=command) as broker:
        address = broker.bootstrap_servers
        kbroker(python, address, "topics", "create", "orders", "--partitions", "2")
        kbroker(python, address, "produce", "orders", text="".join(f"{one}\n" for one in VALUES))
        cell = "".join(CELLS).replace(ADDRESS, address).replace("kbroker_spark_jobs", package)
        began_s = time.monotonic()
        with notebook(python, folder, cell, environment) as kernel:
            assert kernel.stdout is not None
            printed: list[str] = []
            for line in kernel.stdout:
                if line == "the cell has run\n":
                    break
                printed.append(line)
            else:
                raise AssertionError((folder / "errors.log").read_text()[-4000:])
            cell_s = time.monotonic() - began_s
            table = re.findall(r"^\|\s*(\w+)\|\s*(\d)\|\s*(\d)\|$", "".join(printed), re.MULTILINE)
            assert sorted(value for value, _, _ in table) == sorted(VALUES)
            assert len({(partition, offset) for _, partition, offset in table}) == len(VALUES)

            def lag() -> list[str]:
                lines = kbroker(python, address, *TERMINAL.split()[1:]).splitlines()
                return lines[-1].split("\t") if lines else []

            # state, members, topics, partitions, lag, largest lag
            found = ["orders-table", "Empty", "0", "1", "2", "0", "0"]
            wait_until(lambda: lag() == found, LAG_TIMEOUT_S, "a group without a lag")
        return cell_s


def test_the_cell_has_eight_lines() -> None:
    """And the next one shows the table."""
    topic_to_table, look = CELLS
    assert len(topic_to_table.replace("\n\n", "\n").splitlines()) == 8
    assert ".show()" in look


def test_in_a_checkout(tmp_path: Path) -> None:
    run_notebook(Path(sys.executable), tmp_path, {"PYTHONPATH": str(ROOT)}, "spark_jobs")


@pytest.mark.slow
def test_installed_by_pip(tmp_path: Path) -> None:
    """In an environment of its own, with what pip fetches; prints how long each part takes."""
    prefix = tmp_path / "venv"
    began_s = time.monotonic()
    venv.create(prefix, with_pip=True)
    python = prefix / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", f"{ROOT}[spark]"]
    subprocess.run(install, check=True, timeout=1500)
    installed_s = time.monotonic() - began_s
    folder = tmp_path / "notebook"
    folder.mkdir()
    cell_s = run_notebook(python, folder, {"PYTHONPATH": ""}, "kbroker_spark_jobs")
    print(f"installed in {installed_s:.0f} s, from the cell to the table {cell_s:.0f} s")
