"""`lag` from its options to what it prints, on a broker, without Spark."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from kbroker.testing import EmbeddedBroker
from spark_jobs.__main__ import main
from spark_jobs.errors import JobError
from spark_jobs.lag.options import LagOptions, lag_options
from spark_jobs.storage import Folder, absolute
from tests.clients.adapters import ConfluentAdapter, Sent

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_values() -> None:
    values = {"checkpointLocation": "a, b,a", "group": "g", "kafka.bootstrap.servers": "k:1"}
    assert lag_options(values) == LagOptions(("a", "b"), ("g",), "k:1")
    assert lag_options({"group": "g"}).bootstrap_servers == "localhost:9092"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "give --checkpoint"),
        ({"group": " , "}, "give --checkpoint"),
        ({"group": "g", "kafka.security.protocol": "SSL"}, "connects without TLS and SASL"),
    ],
)
def test_values_that_cannot_be(values: dict[str, str], why: str) -> None:
    with pytest.raises(JobError, match=why):
        lag_options(values)


def test_the_command(
    kafka_broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    kafka_broker.create_topic("lagging", partitions=2)
    servers = kafka_broker.bootstrap_servers
    before_ms = time.time_ns() // 1_000_000 - 90_000
    sent = [Sent(None, b"v", (), before_ms + n, n % 2) for n in range(20)]
    ConfluentAdapter(servers).produce("lagging", sent, codec="none", idempotent=True)
    query = Folder(absolute(str(tmp_path)))
    query.write("metadata", b'{"id":"5f3a"}')
    query.write("offsets/0", b'v1\n{}\n{"lagging":{"0":10,"1":6}}')
    query.write("commits/0", b"v1\n{}")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "lag-g"})
    consumer.commit(offsets=[TopicPartition("lagging", 0, 3)], asynchronous=False)
    consumer.close()

    command = ["lag", "--bootstrap-servers", servers, "--checkpoint", str(tmp_path)]
    assert main([*command, "--group", "lag-g"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"checkpoint {tmp_path}, batch 0"
    assert [line.split()[:5] for line in lines[2:4]] == [
        ["lagging", "0", "10", "10", "0"],
        ["lagging", "1", "6", "10", "4"],
    ]
    assert lines[6] == "group lag-g"
    assert [line.split()[:5] for line in lines[8:10]] == [
        ["lagging", "0", "3", "10", "7"],
        ["lagging", "1", "-", "10", "10"],
    ]
    assert main([*command, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["queries"]
    assert (found["lag"], found["query_id"]) == (4, "5f3a")
    assert 90 <= found["seconds_behind"] < 600

    assert main(["lag", "--bootstrap-servers", servers]) == 1
    assert main(["lag", "--bootstrap-servers", "localhost:1", "--group", "g"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith("spark_jobs: give --checkpoint (folders of queries)")
    assert said[1].startswith("spark_jobs: no broker answers: localhost:1: ")
