"""The table of commands: what is run with Kafka's tools against a real Kafka, which is recorded,
and against kbroker, which is to print the same.

A session is a list of steps on one broker, in order; it uses topics and groups that no other
session uses, and deletes them, so that each session can be run alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAIN_CLASSES: Final[Mapping[str, str]] = {
    "ConfigCommand": "kafka.admin.ConfigCommand",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "ShareGroupCommand": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
}
"""Tools that are not in org.apache.kafka.tools."""

CHANGES: Final = re.compile(
    r"--(create|alter|delete|execute)\b|\b(upgrade|downgrade|disable|abort|force\w+)\b"
)
"""Verbs that change something."""
SCRIPTS: Final[Mapping[str, str]] = {
    "TopicCommand": "kafka-topics.sh",
    "ConfigCommand": "kafka-configs.sh",
    "ConsumerGroupCommand": "kafka-consumer-groups.sh",
    "GetOffsetShell": "kafka-get-offsets.sh",
    "DeleteRecordsCommand": "kafka-delete-records.sh",
    "LogDirsCommand": "kafka-log-dirs.sh",
    "FeatureCommand": "kafka-features.sh",
    "MetadataQuorumCommand": "kafka-metadata-quorum.sh",
    "LeaderElectionCommand": "kafka-leader-election.sh",
    "BrokerApiVersionsCommand": "kafka-broker-api-versions.sh",
    "ClientMetricsCommand": "kafka-client-metrics.sh",
    "ClusterTool": "kafka-cluster.sh",
    "GroupsCommand": "kafka-groups.sh",
    "ShareGroupCommand": "kafka-share-groups.sh",
    "TransactionsCommand": "kafka-transactions.sh",
    "StreamsResetter": "kafka-streams-application-reset.sh",
    "ProducerPerformance": "kafka-producer-perf-test.sh",
    "ConsumerPerformance": "kafka-consumer-perf-test.sh",
    "EndToEndLatency": "kafka-e2e-latency.sh",
    "VerifiableProducer": "kafka-verifiable-producer.sh",
    "VerifiableConsumer": "kafka-verifiable-consumer.sh",
    "ClientCompatibilityTest": "kafka-run-class.sh org.apache.kafka.tools.ClientCompatibilityTest",
}
"""The tools that are compared, and the script that starts each."""
SERVER: Final = "--bootstrap-server {bootstrap}"
CONTROLLER: Final = "--bootstrap-controller {controller}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A stated difference of kbroker. lines: a line that Kafka prints -> what kbroker prints
    instead, None for nothing; further lines are separated by a line feed. own: lines that only
    kbroker prints, as a regular expression. errors: what only kbroker prints to standard error,
    where it refuses what Kafka does.
    """

    reason: str
    lines: Mapping[str, str | None] = field(default_factory=dict)
    own: str | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a tool. arguments: as in a shell; `{name}` stands for a value of the session.
    server: which address comes before them. stdin: of the tool. sort: the tool prints in the order
    of a hash map, its own or Kafka's. json: it prints objects, with their members in the order in
    which the JVM finds its methods, which is another one now and then. masks: regular expressions
    and what they are replaced by, for measured figures. again: until the output has this text, the
    row is run again.
    """

    name: str
    tool: str
    arguments: str
    server: str = SERVER
    stdin: str = ""
    sort: bool = False
    json: bool = False
    masks: tuple[tuple[str, str], ...] = ()
    again: str = ""
    differs: Difference | None = None

    @property
    def changes(self) -> bool:
        """Whether it may change something of the cluster."""
        return CHANGES.search(self.arguments) is not None

    @property
    def main_class(self) -> str:
        """The class that the tool's script starts."""
        return MAIN_CLASSES.get(self.tool, f"org.apache.kafka.tools.{self.tool}")


class World:
    """The broker under test as a session sees it. values: what stands for names in arguments.
    on_end: called when the session is over, the last one first.
    """

    def __init__(self, bootstrap: str, controller: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.values = {"bootstrap": bootstrap, "controller": controller, "folder": str(folder)}
        self.on_end: list[Callable[[], object]] = []


@dataclass(frozen=True, slots=True)
class Act:
    """A step that is no tool: makes records, members, files."""

    run: Callable[[World], None]


Step = Row | Act


@dataclass(frozen=True, slots=True)
class Session:
    """about: what the documentation says of it. slow: its rows take long."""

    name: str
    steps: tuple[Step, ...]
    slow: bool = False
    rows: tuple[Row, ...] = field(init=False)

    def __post_init__(self) -> None:
        rows = tuple(step for step in self.steps if isinstance(step, Row))
        object.__setattr__(self, "rows", rows)
