"""Apache Kafka 4.3.1 goes on with a share group that kbroker keeps, and the other way round: what
was acknowledged does not come again, what was released does, with its delivery count. Kafka's
formatters read our records.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import ApacheKafka
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.clients.kafka_tools import KafkaTools
from tests.clients.test_share_groups import (
    consume,
    produce,
    read_from_the_start,
    tool,
)

pytestmark = [
    pytest.mark.reference,
    pytest.mark.slow,
    pytest.mark.timeout(480),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

TOPICS = {
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.retention.ms": "-1",
}
TOOLS = "org.apache.kafka.tools.consumer"
FORMATTERS = {
    "__share_group_state": "group.share.ShareGroupStateMessageFormatter",
    "__consumer_offsets": "ShareGroupMessageFormatter",
}


def lag(kafka_tools: KafkaTools, bootstrap: str) -> list[str]:
    rows = tool(kafka_tools, bootstrap, "--describe", "--group", "g")
    return [row[-1] for row in rows if row[0] == "g"]


def test_either_broker_goes_on_with_the_others_group(
    tmp_path: Path, kafka_tools: KafkaTools
) -> None:
    controller_port = free_port()
    voters = {"controller.quorum.voters": f"1@127.0.0.1:{controller_port}"}
    data = tmp_path / "data"
    shows_deliveries = ("--formatter-property", "print.delivery=true")
    read: list[str] = []
    with BrokerProcess(data, overrides={**TOPICS, **voters}) as broker:
        produce(broker.bootstrap_servers, "t", range(150))
        read_from_the_start(broker.bootstrap_servers, "g")
        read += consume(kafka_tools, broker.bootstrap_servers, "t", "g", 50)
        consume(kafka_tools, broker.bootstrap_servers, "t", "g", 50, "--release")
        for topic, formatter in FORMATTERS.items():
            where = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic)
            how = ("--from-beginning", "--max-messages", "3", "--timeout-ms", "60000")
            which = ("--formatter", f"{TOOLS}.{formatter}")
            printed = kafka_tools.output(f"{TOOLS}.ConsoleConsumer", *where, *how, *which)
            assert printed.count('"groupId":"g"') == 3
    with ApacheKafka(data, overrides=TOPICS, controller_port=controller_port) as kafka:
        time.sleep(3)  # the port opens before the broker is unfenced
        assert lag(kafka_tools, kafka.bootstrap_servers) == ["100"]
        words = consume(kafka_tools, kafka.bootstrap_servers, "t", "g", 50, *shows_deliveries)
        assert "Delivery:1" not in words
        read += [word for word in words if not word.startswith("Delivery")]
    with BrokerProcess(data, overrides={**TOPICS, **voters}) as broker:
        assert lag(kafka_tools, broker.bootstrap_servers) == ["50"]
        read += consume(kafka_tools, broker.bootstrap_servers, "t", "g", 50)
        assert lag(kafka_tools, broker.bootstrap_servers) == ["0"]
    assert Counter(read) == Counter(str(value) for value in range(150))
