"""A broker of kbroker under three controllers of Apache Kafka 4.3.1: it registers, follows the
metadata log, leads what the controllers give it, and goes on when the active controller is killed.
The reverse is in `test_kafka_broker`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from scripts.apache_kafka import ApacheKafka
from scripts.ports import free_port
from spark_jobs.java import java_problem
from tests.clients.adapters import ConfluentAdapter, Sent, wait_until
from tests.clients.process_cluster import active_controller, broker_process, voters_of

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

CONTROLLERS = (7, 8, 9)
RECORDS = [Sent(None, b"%d" % number, partition=number % 2) for number in range(200)]


def kafka_controller(folder: Path, number: int, ports: dict[int, int]) -> ApacheKafka:
    """A controller of Kafka's that is started and may still wait for the others."""
    overrides = {
        "process.roles": "controller",
        "node.id": str(number),
        "listeners": f"CONTROLLER://127.0.0.1:{ports[number]}",
        "controller.quorum.voters": voters_of(ports),
    }
    kafka = ApacheKafka(folder / f"c{number}", overrides=overrides, heap="256m")
    kafka.port = ports[number]
    return kafka


def assert_filled(client: ConfluentAdapter, topic: str) -> None:
    for partition in range(2):
        expected = [record.value for record in RECORDS if record.partition == partition]
        found = client.read(topic, partition, len(expected))
        assert [record.value for record in found] == expected


def test_a_broker_under_three_controllers_of_kafka(tmp_path: Path) -> None:
    ports = {number: free_port() for number in CONTROLLERS}
    with ExitStack() as stack:
        controllers = {number: kafka_controller(tmp_path, number, ports) for number in CONTROLLERS}
        for controller in controllers.values():
            stack.enter_context(controller)
        wait_until(lambda: active_controller(ports) != -1, 60, "a controller is active")
        broker = stack.enter_context(broker_process(tmp_path, 1, voters_of(ports)))
        client = ConfluentAdapter(broker.bootstrap_servers)
        client.create_topic("first", 2)
        client.produce("first", RECORDS, codec="none", idempotent=True)
        killed = active_controller(ports)
        controllers[killed].kill()
        left = {number: port for number, port in ports.items() if number != killed}
        wait_until(lambda: active_controller(left) != -1, 60, "another controller is active")
        client.create_topic("second", 2)
        client.produce("second", RECORDS, codec="none", idempotent=True)
        assert broker.stop() == 0
        broker.start()
        for topic in ("first", "second"):
            assert_filled(client, topic)
