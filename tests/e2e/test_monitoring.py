"""What operators get to monitor a broker: dashboards, alerts and the documentation name what a
broker process exports, and its examples run.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetCommitRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.settings.broker import BrokerConfig
from kbroker.settings.properties import parse_properties
from kbroker.testing.process import BrokerProcess
from scripts.ports import free_port
from tests.e2e.wire import call
from tests.server.monitoring import block_yaml, promql

ROOT = Path(__file__).parents[2]
FILES = ROOT / "config" / "monitoring"
DOCUMENT = (ROOT / "docs" / "monitoring.md").read_text()
DASHBOARD = json.loads((FILES / "kbroker-dashboard.json").read_text())
RULES = [
    rule
    for group in block_yaml.parse((FILES / "kbroker-alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to each series."""

Labels = Mapping[str, str]


class Exported(NamedTuple):
    """What one scrape had. samples: labels of each series, by name. families: their names, those
    of counters with `_total`.
    """

    broker: BrokerProcess
    port: int
    samples: dict[str, list[Labels]]
    families: set[str]


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as page:
        text: str = page.read().decode()
    return text


def answered(ask: Callable[[], Message], code_of: Callable[[Any], int]) -> None:
    """Ask until the coordinator of the group, or the topic, is there."""
    deadline = time.monotonic() + 30
    while code := code_of(ask()):
        assert ErrorCode(code).retriable, ErrorCode(code)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def use(broker: BrokerProcess) -> None:
    """A topic, records in and out, a group that has committed."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name="orders", num_partitions=2, replication_factor=1
    )
    records = build_batch([(1, b"k", b"v", []), (2, b"k", b"v", [])])
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    produced = ProduceRequest.TopicProduceData(name="orders", partition_data=[data])
    part = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1 << 20)
    fetched = FetchRequest.FetchTopic(topic="orders", partitions=[part])
    offset = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    committed = OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[offset])
    with socket.create_connection((broker.host, broker.port), timeout=20) as wire:
        call(wire, CreateTopicsRequest(topics=[wanted], timeout_ms=20_000), 5)
        call(wire, ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[produced]), 9)
        call(wire, FetchRequest(max_wait_ms=0, topics=[fetched]), 11)
        call(wire, FindCoordinatorRequest(key="billing", key_type=0), 3)  # which makes the topic
        answered(
            lambda: call(wire, OffsetCommitRequest(group_id="billing", topics=[committed]), 7),
            lambda response: response.topics[0].partitions[0].error_code,
        )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    port = free_port()
    overrides = {
        "kbroker.metrics.listener": f"127.0.0.1:{port}",
        "offsets.topic.num.partitions": "2",
    }
    folder = tmp_path_factory.mktemp("monitored")
    with BrokerProcess(folder / "data", overrides=overrides) as broker:
        use(broker)
        text = get(port, "/metrics")
        samples: dict[str, list[Labels]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample.labels)
        families = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
        yield Exported(broker, port, samples, families)


def recorded() -> dict[str, set[str]]:
    """The labels of each series that a recording rule makes: those it is grouped by."""
    return {
        rule["record"]: set(promql.selectors(rule["expr"])[-1].labels) - {"le"}
        for rule in RULES
        if "record" in rule
    }


def check_expression(text: str, exported: Exported) -> set[str]:
    """Each selector of an expression finds series that have its labels. Returns all labels that
    the result may have.
    """
    found: set[str] = set(OF_PROMETHEUS)
    selectors = promql.selectors(text)
    assert selectors, text
    for selector in selectors:
        if selector.name == "up":
            continue
        if selector.name in recorded():
            series: list[set[str]] = [recorded()[selector.name]]
            assert not selector.matchers, text
        else:
            assert selector.name in exported.samples, f"{selector.name} is not exported: {text}"
            series = [
                set(labels)
                for labels in exported.samples[selector.name]
                if all(
                    matcher.takes(labels.get(matcher.label, ""))
                    for matcher in selector.matchers
                    if matcher.label not in OF_PROMETHEUS
                )
            ]
        assert series, f"{selector} selects nothing: {text}"
        known = set().union(*series) | OF_PROMETHEUS
        for matcher in selector.matchers:
            assert matcher.label in known or not matcher.value, f"{matcher} in {text}"
        found |= known
    for selector in selectors:
        assert selector.labels <= found, f"{selector.labels - found} in {text}"
    return found


def substituted(text: str) -> str:
    """An expression of the dashboard as Grafana sends it."""
    assert set(re.findall(r"\$\w+", text)) <= {
        "$__rate_interval", "$job", "$instance", "$topic", "$consumergroup",
    }  # fmt: skip
    return re.sub(r"\$\w+", ".*", text.replace("$__rate_interval", "5m"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", rule.get("record")))
def test_rules_name_what_is_exported(rule: dict[str, Any], exported: Exported) -> None:
    labels = check_expression(rule["expr"], exported)
    texts = rule.get("annotations", {})
    for label in re.findall(r"\$labels\.(\w+)", " ".join(texts.values())):
        assert label in labels, label
    if "alert" in rule:
        assert set(texts) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert re.fullmatch(r"\d+[ms]", rule.get("for", "0s"))
    else:
        assert set(rule) == {"record", "expr"}


def test_rules_have_names_of_their_own() -> None:
    names = [rule.get("alert", rule.get("record")) for rule in RULES]
    assert len(names) == len(set(names))


PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: f"{panel['id']} {panel['title']}")
def test_panels_name_what_is_exported(panel: dict[str, Any], exported: Exported) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        labels = check_expression(substituted(target["expr"]), exported)
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels


def test_variables_of_the_dashboard(exported: Exported) -> None:
    names = set()
    for variable in DASHBOARD["templating"]["list"]:
        names.add("$" + variable["name"])
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match is not None
            assert match[2] in check_expression(substituted(match[1]), exported)
    used = set(re.findall(r"\$(?!__)\w+", json.dumps(PANELS)))
    assert used <= names


def test_panels_do_not_overlap() -> None:
    seen: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & seen, panel["title"]
        seen |= cells


def test_the_scrape_configuration() -> None:
    parsed = block_yaml.parse((FILES / "prometheus.yml").read_text())
    assert all((FILES / name).is_file() for name in parsed["rule_files"])
    (job,) = parsed["scrape_configs"]
    assert re.fullmatch(".*kbroker.*", job["job_name"]), "the alert on `up` selects the job"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_promtool_takes_the_files() -> None:
    for command in (
        ["check", "rules", "kbroker-alerts.yml"],
        ["check", "config", "prometheus.yml"],
    ):
        run = subprocess.run(
            ["promtool", *command], cwd=FILES, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr


# hostile scrapers


def hanging(port: int, number: int) -> socket.socket:
    """A connection that sends nothing, a part of a request, far too much of one, or a request whose
    answer it does not read.
    """
    sent = (
        b"",
        b"GET /metr",
        b"GET / HTTP/1.1\r\n" + b"x" * 60_000,
        b"GET /metrics HTTP/1.1\r\n\r\n",
    )
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(20)
    made.connect(("127.0.0.1", port))
    with contextlib.suppress(ConnectionError):
        made.sendall(sent[number % len(sent)])
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_hostile_scrapers_harm_no_one(exported: Exported) -> None:
    broker, port = exported.broker, exported.port
    before = broker.resident_bytes()
    stopping = threading.Event()
    scraped: list[bool] = []

    def scrape_without_a_pause() -> None:
        while not stopping.is_set():
            scraped.append("kbroker_metrics_series" in get(port, "/metrics"))

    scrapers = [threading.Thread(target=scrape_without_a_pause) for _ in range(8)]
    hangs = [hanging(port, number) for number in range(20)]
    for thread in scrapers:
        thread.start()
    try:
        with socket.create_connection((broker.host, broker.port), timeout=20) as wire:
            until = time.monotonic() + 2
            while time.monotonic() < until:
                call(wire, ApiVersionsRequest(), 0)
        assert get(port, "/readyz").startswith("[+] process")
    finally:
        stopping.set()
        for thread in scrapers:
            thread.join()
        for each in hangs:
            each.close()
    assert scraped and all(scraped), "no scrape is lost, and each is whole"
    assert broker.resident_bytes() - before < 32 << 20


# the document


def documented() -> Iterator[tuple[str, set[str]]]:
    """Name and labels of each metric in the tables."""
    for row in re.findall(r"^\| (`k.*|`p.*)$", DOCUMENT, re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        labels = {label.strip() for label in cells[1].split(",")} - {""}
        for name in re.findall(r"`([^`]+)`", cells[0]):
            match = re.fullmatch(r"(\w+){([\w,]+)}(\w*)", name)
            if match is None:
                yield name, labels
            else:
                for part in match[2].split(","):
                    yield match[1] + part + match[3], labels


def test_each_metric_is_documented_with_its_labels(exported: Exported) -> None:
    tables = dict(documented())
    provoked = {"kbroker_request_errors_total"}
    assert set(tables) - exported.families <= provoked
    assert exported.families - set(tables) == set()
    for name, labels in tables.items():
        if name in exported.families:
            series = exported.samples.get(name) or exported.samples[name + "_count"]
            assert set().union(*series) == labels, name


def test_expressions_of_the_document(exported: Exported) -> None:
    lines = [
        line
        for block in re.findall(r"```promql\n(.*?)```", DOCUMENT, re.DOTALL)
        for line in block.splitlines()
        if not line.startswith("#")
    ]
    assert len(lines) > 3
    for line in lines:
        check_expression(line, exported)


def test_settings_of_the_document() -> None:
    for block in re.findall(r"```properties\n(.*?)```", DOCUMENT, re.DOTALL):
        assert BrokerConfig.from_properties(parse_properties(block, source="x")).warnings == ()


def test_probes_of_the_document(exported: Exported) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    probes = block_yaml.parse(block)
    for probe in probes.values():
        assert probe["httpGet"]["port"] == "9404"
        assert get(exported.port, probe["httpGet"]["path"]).startswith("[+] process: running\n")
    assert set(probes) == {"livenessProbe", "readinessProbe"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_commands_of_the_document(exported: Exported) -> None:
    """As they stand, but for the port, the epoch of this broker, and the rest of the headers."""
    (block,) = (
        block
        for block in re.findall(r"```console\n(.*?)```", DOCUMENT, re.DOTALL)
        if "curl" in block
    )
    asked = 0
    for part in block.split("$ ")[1:]:
        command, _, expected = part.partition("\n")
        words = command.replace("localhost:9404", f"127.0.0.1:{exported.port}").split()
        run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
        told = re.sub(r"\d+ records|epoch \d+", "N", run.stdout)
        assert told.startswith(re.sub(r"\d+ records|epoch \d+", "N", expected))
        asked += 1
    assert asked == 3


def test_a_line_of_json_has_the_documented_fields() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    assert set(json.loads(block)) == {"time", "level", "node", "logger", "message"}
