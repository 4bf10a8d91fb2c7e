"""The page `compatibility.md` of the documentation site: the APIs that are served, out of the
registered handlers, and the clients that the tests drive, out of the tests and the pinned versions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from kbroker.protocol.apis import APIS, ApiInfo
from kbroker.server.api_handler import ApiHandler
from kbroker.server.api_policy import Forward, ListenerType
from kbroker.server.handlers import all_handlers, controller_handlers, telemetry_handlers
from kbroker.server.handlers.cluster.envelope import envelope_handler
from scripts.client_tables import go_version, npm_version
from scripts.docs_imports import marks_of
from scripts.docs_markdown import code, prose, table
from scripts.kafka_jars import KAFKA_VERSION

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = ROOT / "tests"

HEAD: Final = f"""# Compatibility

Generated from the registered handlers and from the tests. Names, numbers and versions are those of
Apache Kafka {KAFKA_VERSION}.
"""

APIS_HEAD: Final = """## APIs

A broker announces the versions that are listed, and no others (ApiVersions is computed from the
same list). Versions below Kafka's are those that Kafka 4 dropped. An API without versions is not
served: a request of it ends the connection. *Controller* in the last column: a broker passes the
request on to the active controller (KIP-590); *both*: it answers what concerns itself.
GetTelemetrySubscriptions and PushTelemetry are served where `kbroker.telemetry.receiver` names a
receiver.
"""

CLIENTS_HEAD: Final = """## Clients

These clients are part of the tests, in these versions. Other versions and other clients are
expected to work, as far as they use the APIs above; nothing here tests them. All calls of their
AdminClients are in [clients.md](clients.md).
"""

TESTS_HEAD: Final = """## What the tests do with them
"""

ANSWERED_BY: Final[Mapping[Forward, str]] = {
    Forward.NEVER: "",
    Forward.TO_CONTROLLER: "controller",
    Forward.CHECKED: "both",
}
LISTENERS: Final[Mapping[ListenerType, str]] = {
    ListenerType.BROKER: "broker",
    ListenerType.CONTROLLER: "controller",
}

# Any: handlers of brokers and of controllers, whose services differ


def handlers() -> dict[int, list[ApiHandler[Any]]]:
    """Every registered handler by its API: of brokers' listeners, of controllers', or of both."""
    envelope = envelope_handler(cast(Any, None))  # it is not called, only described
    every: list[ApiHandler[Any]] = [*all_handlers(), *telemetry_handlers(), *controller_handlers()]
    found: dict[int, list[ApiHandler[Any]]] = {}
    for handler in (*every, envelope):
        known = found.setdefault(handler.api_key, [])
        if handler not in known:
            known.append(handler)
    return found


def versions(low: int, high: int) -> str:
    """A range of versions, both inclusive."""
    return str(low) if low == high else f"{low} to {high}"


def api_row(key: int, info: ApiInfo, served: list[ApiHandler[Any]]) -> list[str]:
    """The cells of one API."""
    kafkas = versions(info.min_version, info.max_version)
    if info.max_version < info.min_version:
        kafkas = ""
    if not served:
        return [str(key), info.name, "", kafkas, "", ""]
    ranges = {
        each: versions(handler.min_version, handler.max_version)
        for each in LISTENERS
        for handler in served
        if each in handler.policy.listeners
    }
    here = set(ranges.values())
    if len(here) > 1:
        here = {f"{text} ({LISTENERS[each]})" for each, text in ranges.items()}
    forwards = {ANSWERED_BY[handler.policy.forward] for handler in served} - {""}
    return [
        str(key),
        info.name,
        ", ".join(sorted(here)),
        kafkas,
        ", ".join(LISTENERS[each] for each in ranges),
        ", ".join(sorted(forwards)),
    ]


def api_table() -> list[str]:
    """The table of all of Kafka's APIs."""
    served = handlers()
    return table(
        ["key", "API", "versions", "Kafka's versions", "listeners", "answered by"],
        (api_row(int(key), info, served.get(key, [])) for key, info in sorted(APIS.items())),
    )


class TestedClient(NamedTuple):
    """A client that tests drive. marks: what shows that code uses it, as `scripts/docs_imports` has
    marks. pinned: a file of requirements and the package there; None where the version
    is given, or is that of the system. unless: a mark of another client that has the same
    package.
    """

    name: str
    marks: frozenset[str]
    pinned: tuple[str, str] | None = None
    version: str = ""
    unless: str = ""

    def is_in(self, marks: set[str]) -> bool:
        """Whether code with these marks uses the client."""
        return bool(self.marks & marks) and self.unless not in marks


def class_paths(*names: str) -> frozenset[str]:
    """The marks of code that starts programs of Kafka: what finds their jars."""
    return frozenset(f"scripts.kafka_jars.{name}_class_path" for name in names)


CLIENTS: Final = (
    TestedClient(
        "librdkafka (confluent-kafka)",
        frozenset({"confluent_kafka"}),
        ("dev.txt", "confluent-kafka"),
    ),
    TestedClient("aiokafka", frozenset({"aiokafka"}), ("dev.txt", "aiokafka")),
    TestedClient(
        "kafka-python",
        frozenset({"kafka"}),
        ("dev.txt", "kafka-python"),
        unless="scripts.old_clients",
    ),
    TestedClient(
        "kafka-python, as a client of 0.8.2 to 0.10",
        frozenset({"scripts.old_clients"}),
        ("old-clients.txt", "kafka-python"),
    ),
    TestedClient("kcat", frozenset({"which kcat"}), version="as the system has it"),
    TestedClient(
        "Apache Kafka's Java clients and tools",
        class_paths("tools", "broker", "shell"),
        version=KAFKA_VERSION,
    ),
    TestedClient(
        "franz-go (kadm)",
        frozenset({"tests.clients.admin.toolchains.go_program"}),
        version=go_version("github.com/twmb/franz-go/pkg/kadm"),
    ),
    TestedClient(
        "kafkajs",
        frozenset({"tests.clients.admin.toolchains.node_modules"}),
        version=npm_version("kafkajs"),
    ),
    TestedClient("Kafka Streams", class_paths("streams"), version=KAFKA_VERSION),
    TestedClient("Spark Structured Streaming", frozenset({"pyspark.sql"}), ("dev.txt", "pyspark")),
)

FOLDERS: Final = ("clients", "cluster", "e2e", "spark")
"""Folders of `tests` that are looked at. Tests of other folders use clients to make a load only."""


def client_version(client: TestedClient) -> str:
    """The version that the tests run with. Raises LookupError if none is pinned."""
    if client.pinned is None:
        return client.version
    file, package = client.pinned
    text = (ROOT / "requirements" / file).read_text()
    found = re.search(rf"^{re.escape(package)}==(\S+)", text, re.MULTILINE)
    if found is None:
        raise LookupError(f"{file} does not pin {package}")
    return found[1]


class ClientTest(NamedTuple):
    """A module of tests. place: below the repository, without `.py`. about: the first paragraph of
    its docstring. clients: names of the clients that it drives.
    """

    place: str
    about: str
    clients: tuple[str, ...]


def client_tests() -> list[ClientTest]:
    """The modules of tests that drive a client of another project, by place."""
    found = []
    for folder in FOLDERS:
        for path in sorted((TESTS / folder).rglob("test_*.py")):
            marks = marks_of(path)
            clients = tuple(each.name for each in CLIENTS if each.is_in(marks))
            if clients:
                text = ast.get_docstring(ast.parse(path.read_text())) or ""
                about = " ".join(text.partition("\n\n")[0].split())
                place = path.relative_to(ROOT).with_suffix("").as_posix()
                found.append(ClientTest(place, about, clients))
    return found


def client_table(tests: Iterable[ClientTest]) -> list[str]:
    """The table of clients and versions."""
    used = [name for test in tests for name in test.clients]
    return table(
        ["client", "version", "modules of tests"],
        ([each.name, client_version(each), str(used.count(each.name))] for each in CLIENTS),
    )


def page() -> str:
    """The whole page."""
    tests = client_tests()
    rows = ([code(test.place), prose(test.about), ", ".join(test.clients)] for test in tests)
    parts = (
        (APIS_HEAD, api_table()),
        (CLIENTS_HEAD, client_table(tests)),
        (TESTS_HEAD, table(["tests", "what they do", "clients"], rows)),
    )
    shown = (f"{head}\n" + "\n".join(lines) + "\n" for head, lines in parts)
    return "\n".join([HEAD, *shown])
