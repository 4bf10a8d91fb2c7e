"""What a producer is told when its coordinator refuses its batches or offsets: Kafka's code, in
words that each version of the request knows, and none that would end it for a moment's sake.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.broker.transaction_gate import commit_error_of, produce_error_of, produce_message_of
from kbroker.protocol.errors import ErrorCode

E = ErrorCode
Translate = Callable[[ErrorCode, int], ErrorCode]
PRODUCE, COMMIT = produce_error_of, commit_error_of


@pytest.mark.parametrize(
    ("translate", "error", "expected"),
    [
        (PRODUCE, E.NETWORK_EXCEPTION, {9: E.NOT_ENOUGH_REPLICAS, 12: E.NOT_ENOUGH_REPLICAS}),
        (PRODUCE, E.NOT_COORDINATOR, {9: E.NOT_ENOUGH_REPLICAS, 12: E.NOT_ENOUGH_REPLICAS}),
        (
            PRODUCE,
            E.COORDINATOR_NOT_AVAILABLE,
            {9: E.NOT_ENOUGH_REPLICAS, 12: E.NOT_ENOUGH_REPLICAS},
        ),
        (
            PRODUCE,
            E.COORDINATOR_LOAD_IN_PROGRESS,
            {9: E.NOT_ENOUGH_REPLICAS, 12: E.NOT_ENOUGH_REPLICAS},
        ),
        (
            PRODUCE,
            E.CONCURRENT_TRANSACTIONS,
            {9: E.NOT_ENOUGH_REPLICAS, 11: E.NOT_ENOUGH_REPLICAS, 12: E.CONCURRENT_TRANSACTIONS},
        ),
        (
            PRODUCE,
            E.TRANSACTION_ABORTABLE,
            {9: E.INVALID_TXN_STATE, 11: E.TRANSACTION_ABORTABLE, 12: E.TRANSACTION_ABORTABLE},
        ),
        (PRODUCE, E.PRODUCER_FENCED, {9: E.INVALID_PRODUCER_EPOCH, 12: E.INVALID_PRODUCER_EPOCH}),
        (PRODUCE, E.INVALID_PRODUCER_ID_MAPPING, {12: E.INVALID_PRODUCER_ID_MAPPING}),
        (COMMIT, E.NOT_COORDINATOR, {3: E.COORDINATOR_NOT_AVAILABLE}),
        (COMMIT, E.COORDINATOR_LOAD_IN_PROGRESS, {5: E.COORDINATOR_NOT_AVAILABLE}),
        (
            COMMIT,
            E.CONCURRENT_TRANSACTIONS,
            {3: E.COORDINATOR_NOT_AVAILABLE, 5: E.CONCURRENT_TRANSACTIONS},
        ),
        (COMMIT, E.TRANSACTION_ABORTABLE, {3: E.INVALID_TXN_STATE, 4: E.TRANSACTION_ABORTABLE}),
        (COMMIT, E.PRODUCER_FENCED, {3: E.INVALID_PRODUCER_EPOCH, 5: E.INVALID_PRODUCER_EPOCH}),
    ],
    ids=lambda value: getattr(value, "name", None) or getattr(value, "__name__", ""),
)
def test_codes(translate: Translate, error: ErrorCode, expected: dict[int, ErrorCode]) -> None:
    for version, code in expected.items():
        assert translate(error, version) is code
        assert not error.retriable or code.retriable


def test_what_would_mislead_is_said_in_words() -> None:
    assert "transaction" in (produce_message_of(E.NOT_ENOUGH_REPLICAS) or "")
    assert "transaction" in (produce_message_of(E.INVALID_TXN_STATE) or "")
    assert produce_message_of(E.INVALID_PRODUCER_EPOCH) is None
