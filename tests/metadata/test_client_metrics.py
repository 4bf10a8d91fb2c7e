"""Subscriptions to client metrics: Kafka's rules, codes and texts."""

from __future__ import annotations

import pytest

from kbroker.metadata.client_metrics import check_subscription
from kbroker.protocol.errors import ErrorCode, KafkaError

JAVA = {
    "client_id": "producer-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "client_source_port": None,
}


def test_defaults() -> None:
    subscription = check_subscription("s", {"metrics": "org.apache.kafka.producer., *"})
    assert subscription.metrics == ("org.apache.kafka.producer.", "*")
    assert subscription.interval_ms == 300_000
    assert subscription.matches({})


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        pytest.param("client_id=producer-.*", True, id="whole value"),
        pytest.param("client_id=producer", False, id="part of the value"),
        pytest.param("client_id=producer-.*,client_software_version=3.*", False, id="all count"),
        pytest.param("client_source_port=.*", False, id="not known"),
        pytest.param("client_id=a,client_id = producer-1", True, id="the last of an attribute"),
    ],
)
def test_patterns(match: str, matches: bool) -> None:
    assert check_subscription("s", {"match": match}).matches(JAVA) is matches


@pytest.mark.parametrize(
    ("name", "values", "code", "words"),
    [
        pytest.param("", {}, ErrorCode.INVALID_REQUEST, "name can't be empty", id="no name"),
        pytest.param("s", {"metric": "x"}, ErrorCode.INVALID_REQUEST, "metric", id="key"),
        pytest.param("s", {"interval.ms": "x"}, ErrorCode.INVALID_CONFIG, "Not a", id="type"),
        pytest.param("s", {"interval.ms": "99"}, ErrorCode.INVALID_REQUEST, "between", id="low"),
        pytest.param("s", {"interval.ms": "3600001"}, ErrorCode.INVALID_REQUEST, "hour", id="high"),
        pytest.param("s", {"match": "client_id"}, ErrorCode.INVALID_CONFIG, "Illegal", id="no ="),
        pytest.param("s", {"match": "user=x"}, ErrorCode.INVALID_CONFIG, "Illegal", id="attribute"),
        pytest.param(
            "s", {"match": "client_id=("}, ErrorCode.INVALID_CONFIG, "Illegal", id="regex"
        ),
        pytest.param(
            "s", {"match": f"client_id={'a' * 250}"}, ErrorCode.INVALID_CONFIG, "Il", id="long"
        ),
        pytest.param("s", {"match": "client_id=a=b"}, ErrorCode.INVALID_CONFIG, "Ille", id="two ="),
    ],
)
def test_what_is_refused(name: str, values: dict[str, str], code: ErrorCode, words: str) -> None:
    with pytest.raises(KafkaError) as refusal:
        check_subscription(name, values)
    assert refusal.value.code is code
    assert words in refusal.value.message
