"""InitProducerId: fresh ids, at once or later; transactions refused for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.model import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kbroker.server.dispatch import RequestContext
from kbroker.server.handlers.init_producer_id import HANDLERS

(HANDLER,) = HANDLERS
VERSIONS = range(HANDLER.min_version, HANDLER.max_version + 1)


def ask(version: int, next_id: int | Deferred[int] = 4000, **fields: Any) -> Any:  # an Outcome
    request = InitProducerIdRequest(**({"transactional_id": None} | fields))
    received, _ = decode(InitProducerIdRequest, encode(request, version), version)
    services: Any = SimpleNamespace(producer_ids=SimpleNamespace(next_id=lambda: next_id))
    outcome = HANDLER.handle(services, RequestContext(ApiKey.INIT_PRODUCER_ID, version), received)
    if isinstance(outcome, Deferred):
        return outcome
    assert isinstance(outcome, InitProducerIdResponse)
    return decode(InitProducerIdResponse, encode(outcome, version), version)[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(version: int) -> None:
    response = ask(version)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 4000, 0)


def test_an_id_that_comes_later() -> None:
    coming: Deferred[int] = Deferred()
    outcome = ask(4, coming)
    assert not outcome.done
    coming.resolve(5)
    assert outcome.value.producer_id == 5


def test_an_idempotent_producer_that_names_its_id_gets_a_new_one() -> None:
    assert ask(3, producer_id=7, producer_epoch=2).producer_id == 4000


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(7, -1), (-1, 2)])
def test_half_an_identity(producer_id: int, producer_epoch: int) -> None:
    response = ask(3, producer_id=producer_id, producer_epoch=producer_epoch)
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("transactional_id", "error"),
    [
        ("tx", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("", ErrorCode.INVALID_REQUEST),
    ],
)
def test_transactions_are_refused_for_good(transactional_id: str, error: ErrorCode) -> None:
    response = ask(5, transactional_id=transactional_id)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (error, -1, -1)
    assert not error.retriable
