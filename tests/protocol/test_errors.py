from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbroker.protocol.errors import BufferUnderflow, ErrorCode, KafkaError, MalformedRequest

FACTS = json.loads((Path(__file__).parents[1] / "data" / "kafka" / "errors.json").read_text())


def test_codes_names_and_retriable_are_kafkas() -> None:
    assert len(FACTS["errors"]) == 135
    assert {(code.name, code.value, code.retriable) for code in ErrorCode} == {
        (fact["name"], fact["code"], fact["retriable"]) for fact in FACTS["errors"]
    }


def test_retriable_of_a_few() -> None:
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert ErrorCode.NOT_ENOUGH_REPLICAS.retriable
    assert not ErrorCode.UNKNOWN_SERVER_ERROR.retriable
    assert not ErrorCode.NONE.retriable


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param("", "INVALID_REQUEST", id="no message"),
        pytest.param("two names", "INVALID_REQUEST: two names", id="message"),
    ],
)
def test_kafka_error_says_what_and_why(message: str, text: str) -> None:
    error = KafkaError(ErrorCode.INVALID_REQUEST, message)
    assert (error.code, error.message, str(error)) == (ErrorCode.INVALID_REQUEST, message, text)


def test_an_underflow_is_malformed_and_neither_is_a_kafka_error() -> None:
    assert issubclass(BufferUnderflow, MalformedRequest)
    assert not issubclass(MalformedRequest, KafkaError)
