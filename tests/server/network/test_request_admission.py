"""Which requests wait while the memory account is nearly exhausted."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.server.api_handler import small_responses
from kbroker.server.handlers import all_handlers
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.network.request_admission import RequestAdmission


class FrontOf:
    """A receive buffer with a small request of this API at its front."""

    def __init__(self, api_key: int) -> None:
        self.api_key = api_key

    def next_api_key(self) -> int:
        return self.api_key


@pytest.mark.parametrize(
    ("api_key", "waits_for_answers", "waits_at_the_limit"),
    [
        (ApiKey.METADATA, True, True),
        (ApiKey.PRODUCE, False, True),
        (ApiKey.FETCH, False, True),
        (ApiKey.HEARTBEAT, False, True),
    ],
)
def test_small_answers_do_not_wait_for_the_large_ones_of_others(
    api_key: ApiKey, waits_for_answers: bool, waits_at_the_limit: bool
) -> None:
    memory = MemoryPool(1 << 20)
    unused: Any = None
    front = cast(Any, FrontOf(api_key))
    small = small_responses(all_handlers())
    admission = RequestAdmission(front, memory, unused, lambda: None, small)
    assert not admission.must_queue_up()
    memory.charge(memory.answer_limit + 1)
    assert admission.must_queue_up() == waits_for_answers
    memory.charge(memory.limit)
    if admission.ticket is None:
        assert admission.must_queue_up() == waits_at_the_limit
