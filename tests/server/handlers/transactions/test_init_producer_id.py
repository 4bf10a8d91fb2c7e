"""InitProducerId: fresh ids, at once or later; with a transactional id the coordinator's answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.protocol.codecs.codec import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.server.handlers.transactions.init_producer_id import HANDLERS
from kbroker.server.requests import RequestContext

(HANDLER,) = HANDLERS
VERSIONS = range(HANDLER.min_version, HANDLER.max_version + 1)


def ask(version: int, next_id: Deferred[int] | None = None, **fields: Any) -> Any:  # an Outcome
    request = InitProducerIdRequest(**({"transactional_id": None} | fields))
    received, _ = decode(InitProducerIdRequest, encode(request, version), version)
    fenced = InitProducerIdResponse(
        error_code=ErrorCode.PRODUCER_FENCED, producer_id=-1, producer_epoch=-1
    )
    services: Any = SimpleNamespace(
        producer_ids=SimpleNamespace(next_id=lambda: next_id or Deferred.of(4000)),
        transactions=SimpleNamespace(init_producer_id=lambda request: Deferred.of(fenced)),
    )
    outcome = HANDLER.handle(services, RequestContext(ApiKey.INIT_PRODUCER_ID, version), received)
    if isinstance(outcome, Deferred):
        if not outcome.done:
            return outcome
        outcome = outcome.value
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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fenced_producer_is_told_so_in_words_it_knows(version: int) -> None:
    expected = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert ask(version, transactional_id="tx").error_code == expected


def test_an_empty_transactional_id() -> None:
    assert ask(5, transactional_id="").error_code == ErrorCode.INVALID_REQUEST
