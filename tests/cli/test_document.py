"""The examples of docs/cli.md, run as they stand but for the broker's address."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from kbroker.client.cluster import TRANSACTION_COORDINATOR, Client, check
from kbroker.protocol.messages.coordinators.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.testing import EmbeddedBroker
from tests.cli.test_app import CLI_DOCUMENT, LEAVES
from tests.cli.test_transactions import hang

Cli = Callable[..., Any]
ROOT = Path(__file__).parents[2]

NOT_RUN: Final[Mapping[str, str]] = {
    "serve": "a broker that runs until it is stopped; tests of the node start it",
    "format": "of the directories of a broker that does not run; test_app formats some",
    "jobs": "needs Spark; tests/spark runs it",
    "sim": "minutes of simulated time; test_sim runs seconds of it",
    "spark-conf": "prints the configuration of Spark; a test of its own compares it",
}
"""Sections whose examples are not run here, and where they are."""

SECTIONS: Final[Mapping[str, str]] = {
    title: text
    for title, text in re.findall(
        r"^## (\S+)\n(.*?)(?=^## |\Z)", CLI_DOCUMENT, re.MULTILINE | re.DOTALL
    )
}
RUN: Final = [title for title in SECTIONS if title not in NOT_RUN]
EMPTY_CLUSTER: Final = {"topics"}
"""Sections that begin with an empty cluster."""


def blocks(title: str) -> list[str]:
    return re.findall(r"^```\n(.*?)^```$", SECTIONS[title], re.MULTILINE | re.DOTALL)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    (tmp_path / "data").mkdir()
    with EmbeddedBroker(data=tmp_path / "data") as made:
        yield made


def prepare(cli: Cli, folder: Path) -> None:
    """The topics and groups that the examples speak of."""
    lines = folder / "births.txt"
    lines.write_text("ada:1815\ngrace:1906\n")
    assert cli("topics", "create", "orders", "prices", "-p", "6").code == 0
    assert cli("topics", "create", "births", "greetings").code == 0
    assert cli("produce", "births", "-k", ":", "-f", str(lines)).code == 0
    assert cli("produce", "greetings", "-f", str(lines)).code == 0
    assert cli("perf", "produce", "orders", "-n", "300").code == 0
    assert cli("consume", "births", "-g", "readers", "-e", "-n", "1").code == 0


def prepare_transactions(broker: EmbeddedBroker) -> None:
    """A transactional id, and a transaction that hangs."""
    request = InitProducerIdRequest(transactional_id="payments-1", transaction_timeout_ms=60_000)

    async def initialise() -> None:
        async with Client(broker.bootstrap_servers) as client:

            async def ask() -> None:
                response = await client.to_coordinator(
                    "payments-1",
                    request,
                    InitProducerIdResponse,
                    key_type=TRANSACTION_COORDINATOR,
                    max_version=5,
                )
                check(response.error_code)

            await client.retry(ask)

    asyncio.run(initialise())
    broker.create_topic("payments")
    assert hang(broker, "payments") == 0


@pytest.mark.parametrize("title", RUN)
def test_examples(
    cli: Cli,
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    title: str,
) -> None:
    monkeypatch.setenv("KBROKER_BOOTSTRAP", broker.bootstrap_servers)
    monkeypatch.setenv("KBROKER_PROFILES_FILE", str(tmp_path / "profiles.json"))
    if title not in EMPTY_CLUSTER:
        prepare(cli, tmp_path)
    if title == "transactions":
        prepare_transactions(broker)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "\n".join(blocks(title)).replace("localhost:9092", broker.bootstrap_servers)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": binaries, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_command_has_an_example() -> None:
    text = "\n".join(block for title in SECTIONS for block in blocks(title))
    missing = [
        " ".join(path) for path in LEAVES if not re.search(rf"\bkbroker {' '.join(path)}\b", text)
    ]
    assert missing == []


def test_what_is_not_run_says_why() -> None:
    assert all(NOT_RUN.values())
    assert {"serve", "format"} <= set(SECTIONS)
