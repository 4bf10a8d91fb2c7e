"""The plugin's fixtures, in a project that has nothing but them."""

from __future__ import annotations

from pathlib import Path

from tests.nested_pytest import run_pytest

PROJECT = """
import confluent_kafka
from confluent_kafka.admin import AdminClient

addresses = []


def topics(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return set(admin.list_topics(timeout=20).topics)


def test_one(kafka_broker, kafka_topic):
    assert topics(kafka_broker) == {kafka_topic}
    assert kafka_topic.startswith("test_one-")
    addresses.append(kafka_broker.bootstrap_servers)


def test_two(kafka_broker, kafka_topic):
    assert len(topics(kafka_broker)) == 2
    assert addresses == [kafka_broker.bootstrap_servers], "one broker for the session"


def test_three(kafka_cluster):
    assert len(kafka_cluster.nodes) == 3
    kafka_cluster.nodes[2].kill()
    addresses.append(kafka_cluster.bootstrap_servers)


def test_four(kafka_cluster):
    assert kafka_cluster.nodes[2].running, "it was killed by the test before"
    assert addresses[-1] == kafka_cluster.bootstrap_servers, "one cluster for the session"
"""


def test_brokers_for_the_session_and_a_topic_for_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(PROJECT)
    run = run_pytest(tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout
