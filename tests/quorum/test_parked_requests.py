"""Parked requests: answered, abandoned with their connection, failed at the end."""

from __future__ import annotations

from kbroker.ports import broker_stopping
from kbroker.protocol.messages.quorum import VoteResponse
from kbroker.quorum.parked_requests import ParkedRequests


def test_each_request_gets_its_own_answer() -> None:
    parked = ParkedRequests(lambda token: None)
    (first, slow), (second, quick) = parked.park(), parked.park()
    response = VoteResponse()
    parked.answer(second, response)
    assert first != second and quick.value is response and not slow.done


def test_a_closed_connection_abandons_its_request() -> None:
    abandoned: list[int] = []
    parked = ParkedRequests(abandoned.append)
    token, answer = parked.park()
    answer.cancel()
    assert abandoned == [token]
    parked.answer(token, VoteResponse())  # the core had answered already
    answered_token, answered = parked.park()
    parked.answer(answered_token, VoteResponse())
    answered.cancel()
    assert abandoned == [token] and not answer.done


def test_a_node_that_stops_fails_what_waits() -> None:
    parked = ParkedRequests(lambda token: None)
    answers = [parked.park()[1] for _ in range(2)]
    parked.fail_all(broker_stopping())
    assert [answer.error is not None for answer in answers] == [True, True]
    parked.fail_all(broker_stopping())
