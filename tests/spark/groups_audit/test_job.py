"""`groups-audit` from its options to what it prints, on a broker, without Spark."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.__main__ import main
from spark_jobs.errors import JobError
from spark_jobs.groups_audit.job import groups_audit
from spark_jobs.groups_audit.options import AuditOptions, audit_options
from tests.clients.adapters import ConfluentAdapter, Sent

pytestmark = pytest.mark.filterwarnings("ignore")


def test_values() -> None:
    values = {"group": "g,h", "points": "9", "stuckAfter": "5s", "kafka.bootstrap.servers": "k:1"}
    assert audit_options(values) == AuditOptions(("g", "h"), 9, 5_000, "k:1")
    assert audit_options({}) == AuditOptions()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"points": "1001"}, "at most 1000"),
        ({"kafka.security.protocol": "SSL"}, "connects without TLS and SASL"),
    ],
)
def test_values_that_cannot_be(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        audit_options(values)


def test_commits_of_members_tools_and_transactions(
    kafka_broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    servers = kafka_broker.bootstrap_servers
    kafka_broker.create_topic("audited", partitions=1)
    before_ms = time.time_ns() // 1_000_000 - 90_000
    sent = [Sent(None, b"v", (), before_ms + n, 0) for n in range(10)]
    ConfluentAdapter(servers).produce("audited", sent, codec="none", idempotent=True)

    tool = Consumer({"bootstrap.servers": servers, "group.id": "audit-tool"})
    tool.commit(offsets=[TopicPartition("audited", 0, 4)], asynchronous=False)
    tool.close()
    member = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "audit-members",
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    member.subscribe(["audited"])
    assert member.poll(30) is not None
    member.commit(offsets=[TopicPartition("audited", 0, 9)], asynchronous=False)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "audit-tx"})
    producer.init_transactions(30)
    producer.begin_transaction()
    offsets = [TopicPartition("audited", 0, 7)]
    producer.send_offsets_to_transaction(offsets, tool_metadata(servers), 30)
    producer.commit_transaction(30)
    member.close()

    found = groups_audit(AuditOptions(bootstrap_servers=servers))
    points: dict[str, Any] = {
        each.group: each.points[-1] for each in found.partitions if each.topic == "audited"
    }
    tooled = points["audit-tool"]
    assert (tooled.offset, tooled.by, tooled.end, tooled.lag) == (4, "no member", 10, 6)
    assert points["audit-members"].offset == 9
    assert points["audit-members"].by.startswith("reader@")
    assert (points["audit-moved"].offset, points["audit-moved"].by) == (
        7,
        "transactional id audit-tx",
    )
    assert found.stuck == [] and found.exit_code == 0

    command = ["groups-audit", "--bootstrap-servers", servers, "--group", "audit-tool,absent"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["group audit-tool", "  audited-0: 1 commit, lag now 6"]
    assert lines[2].endswith("Z  offset 4  lag 6  by no member")
    assert lines[3:] == [
        "note: group absent has committed no offsets",
        "1 group, 1 commit in the log, 0 aborted; 0 stuck transactions",
    ]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0]["lag"] == 6


def tool_metadata(servers: str) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "audit-moved"})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def test_an_open_transaction_becomes_a_stuck_one(kafka_broker: EmbeddedBroker) -> None:
    from confluent_kafka import Producer

    servers = kafka_broker.bootstrap_servers
    kafka_broker.create_topic("audited-open", partitions=1)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": "audit-open",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("audited-open", b"v")
    producer.flush(30)
    options = AuditOptions(bootstrap_servers=servers)
    now_ms = time.time_ns() // 1_000_000
    assert groups_audit(options, now_ms).stuck == []
    report = groups_audit(options, now_ms + 71_000)
    (stuck,) = report.stuck
    assert (stuck.transactional_id, stuck.state, stuck.partitions) == (
        "audit-open",
        "Ongoing",
        ("audited-open-0",),
    )
    assert report.exit_code == 1
    assert "stuck: audit-open, Ongoing since " in report.to_text()
    producer.abort_transaction(30)
    assert groups_audit(options, now_ms + 71_000).stuck == []


def test_no_broker() -> None:
    with pytest.raises(JobError, match="no broker answers: localhost:1"):
        groups_audit(AuditOptions(bootstrap_servers="localhost:1"))
