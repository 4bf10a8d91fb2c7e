"""Requests and responses as frames in arbitrary pieces, and the detection of unanswered
requests.
"""

from __future__ import annotations

from random import Random

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.simulation.unanswered import Conversation

CLIENT, BROKER = 0, 2


def frame(api_key: ApiKey, size: int = 12) -> bytes:
    return size.to_bytes(4, "big") + int(api_key).to_bytes(2, "big") + bytes(size - 2)


def waiting(conversation: Conversation) -> list[str]:
    return [str(request) for request in conversation.unanswered]


def test_requests_are_answered_in_their_order() -> None:
    conversation = Conversation(CLIENT, BROKER)
    conversation.asked(frame(ApiKey.METADATA) + frame(ApiKey.FETCH), 1.0)
    conversation.asked(frame(ApiKey.PRODUCE, 70_000), 2.5)
    assert waiting(conversation) == [
        "METADATA from 0 to 2, sent at 1.000",
        "FETCH from 0 to 2, sent at 1.000",
        "PRODUCE from 0 to 2, sent at 2.500",
    ]
    conversation.answered(frame(ApiKey.PRODUCE) + frame(ApiKey.PRODUCE))
    assert waiting(conversation) == ["PRODUCE from 0 to 2, sent at 2.500"]
    conversation.answered(frame(ApiKey.PRODUCE))
    assert not conversation.unanswered


@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_size_are_put_together(seed: int) -> None:
    random = Random(seed)
    keys = [random.choice(list(ApiKey)) for _ in range(20)]
    asked = b"".join(frame(key, random.choice((2, 3, 10, 500))) for key in keys)
    conversation = Conversation(CLIENT, BROKER)
    while asked:
        count = random.randint(1, 40)
        conversation.asked(asked[:count], 0.0)
        asked = asked[count:]
    assert [request.api_key for request in conversation.unanswered] == keys
    answers = b"".join(frame(ApiKey.FETCH, random.choice((4, 9, 100))) for _ in keys)
    while answers:
        count = random.randint(1, 40)
        conversation.answered(answers[:count])
        answers = answers[count:]
    assert not conversation.unanswered


def test_when_an_api_was_asked_last() -> None:
    conversation = Conversation(CLIENT, BROKER)
    conversation.asked(frame(ApiKey.FETCH), 1.0)
    conversation.asked(frame(ApiKey.METADATA), 2.0)
    conversation.asked(frame(ApiKey.FETCH), 3.0)
    assert conversation.last_asked_s == {ApiKey.FETCH: 3.0, ApiKey.METADATA: 2.0}
