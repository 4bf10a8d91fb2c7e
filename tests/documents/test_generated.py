"""The pages that are made when the site is built: complete, and valid Markdown."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from typing import Any

import pytest

from kbroker.protocol.apis import APIS
from kbroker.server.handlers import all_handlers, controller_handlers
from kbroker.settings.tables.group_table import CLIENT_METRICS_KEYS, GROUP_KEYS
from kbroker.settings.tables.served import OWN_KEYS
from kbroker.settings.tables.table import BROKER_KEYS, DYNAMIC_ONLY_KEYS
from kbroker.settings.tables.topic_table import TOPIC_KEYS
from scripts import (
    client_tables,
    configuration_table,
    docs_commands,
    docs_compatibility,
    docs_hook,
    docs_tools,
)
from scripts.docs_imports import marks_of
from scripts.docs_markdown import plain, prose, table
from tests.cli.test_app import LEAVES, TREE
from tests.clients.compared.row import SCRIPTS
from tests.documents.pages import ROOT


@cache
def commands_page() -> str:
    """Not made at import: each worker imports this module, and one runs its tests."""
    return docs_commands.page()


@cache
def compatibility_page() -> str:
    """Made when a test first reads it, as `commands_page` is."""
    return docs_compatibility.page()


def section(title: str) -> str:
    """What stands below the heading of a command."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", commands_page(), re.M | re.S)
    assert found is not None, title
    return found[1]


def test_every_tool_that_is_compared() -> None:
    page = docs_tools.page()
    assert {row.tool for row in docs_tools.rows()} == set(SCRIPTS)
    for script in SCRIPTS.values():
        assert f"\n### {script}\n" in page
    row = "| fewer partitions | `kafka-topics.sh --alter --topic ta-a --partitions 1` |  |"
    assert row in page
    for tested in docs_tools.rows():
        assert tested.differs is None or plain(tested.differs.reason) in page


@pytest.mark.parametrize("path", [path for path in TREE if path], ids=" ".join)
def test_every_command_with_every_option(path: tuple[str, ...]) -> None:
    text = section(" ".join(["kbroker", *path]))
    shared = section("Client options") if "#client-options" in text else ""
    if path in LEAVES:
        for parameter in TREE[path].params:
            if not getattr(parameter, "hidden", False):
                for option in (each for each in parameter.opts if each.startswith("-")):
                    assert re.search(rf"(?<![\w-]){option}(?![\w-])", text + shared), option
    assert "```text\nkbroker " in text


def test_every_configuration() -> None:
    page = configuration_table.page()
    broker, own, topics, groups, metrics = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    for part, keys in (
        (broker, {**BROKER_KEYS, **DYNAMIC_ONLY_KEYS}),
        (own, OWN_KEYS),
        (topics, TOPIC_KEYS),
        (groups, GROUP_KEYS),
        (metrics, CLIENT_METRICS_KEYS),
    ):
        named = re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)
        assert named == sorted(key.name for key in keys.values() if not key.internal)


def test_how_many_configurations_act() -> None:
    """A row for each way to change a key; the table below it has as many."""
    page = configuration_table.page().partition("## Of kbroker alone")[0]
    summary = page.partition("| key |")[0]
    head, *counts = re.findall(r"^\| ([a-z-]+) \| (.*) \|$", summary, re.MULTILINE)
    statuses = head[1].split(" | ")
    assert [mode for mode, _ in counts] == ["read-only", "per-broker", "cluster-wide"]
    for mode, cells in counts:
        for status, count in zip(statuses, cells.split("|"), strict=True):
            # "; refused in the file" may follow a status
            row = rf"^\| `.* \| {mode} \| {status}(?:; [^|]*)? \|$"
            rows = re.findall(row, page, re.MULTILINE)
            assert len(rows) == int(count.strip() or 0), (mode, status)


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("num.partitions", "int | `1` | a whole number from 1 up | read-only | acts"),
        (
            "log.cleaner.threads",
            "int | `1` | a whole number from 0 up | cluster-wide | acts at once",
        ),
        ("compression.gzip.level", "int | `-1` | a whole number from 1 to 9, or -1 | cluster-wide"),
        ("authorizer.class.name", "string | empty | non-null string | read-only | refused"),
        ("min.insync.replicas", "int | `1` | a whole number from 1 up | `min.insync.replicas`"),
        ("remote.storage.enable", "boolean | `false` |  |  | not yet"),
        ("listeners", "list | `PLAINTEXT://:9092` |  | per-broker | acts at once"),
    ],
)
def test_the_facts_of_a_configuration(name: str, cells: str) -> None:
    assert f"| `{name}` | {cells}" in configuration_table.page()


def test_every_api() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([^|]*) \|", compatibility_page(), re.MULTILINE)
    assert [(int(key), name) for key, name, _ in rows] == [
        (int(key), info.name) for key, info in sorted(APIS.items())
    ]
    shown = {int(key): versions.strip() for key, _, versions in rows}
    # Any: handlers of brokers and of controllers
    handlers: list[Any] = [*all_handlers(), *controller_handlers()]
    for handler in handlers:
        expected = docs_compatibility.versions(handler.min_version, handler.max_version)
        assert expected in shown[handler.api_key], handler.api_key.name
    unserved = {APIS[key].name for key, versions in shown.items() if not versions}
    assert {APIS[handler.api_key].name for handler in handlers}.isdisjoint(unserved)


@pytest.mark.parametrize(
    "row",
    [
        "| 1 | Fetch | 0 to 18 (broker), 4 to 18 (controller) | 4 to 18 | broker, controller |  |",
        "| 19 | CreateTopics | 0 to 7 | 2 to 7 | broker, controller | controller |",
        "| 58 | Envelope | 0 | 0 | controller |  |",
    ],
)
def test_the_facts_of_an_api(row: str) -> None:
    assert row in compatibility_page()


def test_every_client_is_in_tests_and_has_the_version_that_is_installed() -> None:
    tests = docs_compatibility.client_tests()
    used = {name for test in tests for name in test.clients}
    assert used == {client.name for client in docs_compatibility.CLIENTS}
    for client in docs_compatibility.CLIENTS:
        assert docs_compatibility.client_version(client)
        if client.pinned is not None and client.pinned[0] == "dev.txt":
            installed = metadata.version(client.pinned[1])
            assert docs_compatibility.client_version(client) == installed


def test_the_clients_of_a_test() -> None:
    """By what its own functions import, what it imports of other modules, and what it starts."""
    clients = {test.place: test.clients for test in docs_compatibility.client_tests()}
    java = "Apache Kafka's Java clients and tools"
    assert clients["tests/clients/test_console_tools"] == (java,)
    assert clients["tests/clients/test_kcat"] == ("kcat",)
    assert java in clients["tests/clients/test_group_churn"]
    assert "aiokafka" in clients["tests/clients/test_group_churn"]
    old = clients["tests/clients/test_old_clients"]
    assert "kafka-python, as a client of 0.8.2 to 0.10" in old and "kafka-python" not in old
    assert "tests/clients/test_process_cluster" not in clients
    marks = marks_of(ROOT / "tests" / "clients" / "test_kcat.py")
    assert "which kcat" in marks and "confluent_kafka" not in marks


def test_documents_of_the_root_link_from_docs() -> None:
    page = docs_hook.GENERATED["architecture.md"]()
    assert "](adr/0001-compiled-codecs.md)" in page and "](docs/" not in page
    assert docs_hook.GENERATED["changelog.md"]().startswith("# Changelog")


def test_the_navigation_lists_the_decisions() -> None:
    found = docs_hook.with_decisions([{"Home": "index.md"}, {"In": [{"D": ["adr/index.md"]}]}])
    assert found[0] == {"Home": "index.md"}
    listed = found[1]["In"][0]["D"]
    assert listed[:2] == ["adr/index.md", "adr/0001-compiled-codecs.md"]
    assert len(listed) == 1 + len(list((ROOT / "docs" / "adr").glob("*.md")))
    assert docs_hook.decisions_page().count("\n- [") == len(listed) - 1


def test_text_is_not_markup() -> None:
    assert plain("a|b <c> *_[x]\\") == "a\\|b &lt;c> \\*\\_\\[x\\]\\\\"
    assert prose("see `a_b|c` and a_b") == "see `a_b|c` and a\\_b"
    assert table(["a", "b"], [["1", "2"]]) == ["| a | b |", "|---|---|", "| 1 | 2 |"]
    with pytest.raises(ValueError, match="1 cells under 2 headings"):
        table(["a", "b"], [["1"]])


def test_every_admin_call_of_every_client() -> None:
    assert client_tables.PAGE.read_text() == client_tables.page()
    tables = {each.client: each for each in client_tables.client_tables()}
    java = tables["Apache Kafka's Admin (Java)"].outcomes
    assert (java["createTopics"], java["createAcls"]) == ("served", "SECURITY_DISABLED")
    assert all(len(each.outcomes) >= 14 for each in tables.values())
