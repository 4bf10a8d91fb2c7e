"""A refused request ends its connection, after the responses before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.ports import Deferred
from kbroker.protocol.errors import MalformedRequest
from kbroker.protocol.messages.api_versions import ApiVersionsResponse
from kbroker.server.dispatch import Dispatcher
from kbroker.server.network.descriptors import DescriptorBudget
from kbroker.server.network.limits import PipelineBudget
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.network.page_cache import PageCache
from kbroker.server.network.responses import Responses
from kbroker.server.requests import NoResponseError, PendingResponse, Refusal


class Bench:
    """The responses of a connection whose client gets `written`, in bytes."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.told: list[str] = []
        self.planned: list[Any] = []
        self.dispatcher = Dispatcher([], SimpleNamespace(node_id=1))  # type: ignore[arg-type]  # no API is asked
        transport: Any = SimpleNamespace(
            get_extra_info=lambda *_: None,
            set_write_buffer_limits=lambda **_: None,
            write=lambda data: self.written.append(len(data)),
            get_write_buffer_size=lambda: 0,
            is_closing=lambda: False,
        )
        shared: Any = SimpleNamespace(
            loop=SimpleNamespace(call_soon=self.planned.append),
            executor=None,
            descriptors=DescriptorBudget(),
            page_cache=PageCache(None),
            budget=PipelineBudget(500),
            memory=MemoryPool(),
            dispatcher=self.dispatcher,
        )
        owner: Any = self
        self.responses = Responses(owner, shared, transport)

    def responses_sent(self) -> None: ...

    def client_read(self) -> None: ...

    def sending_failed(self, error: Exception) -> None:
        self.told.append(str(error))

    def refuse(self, reason: str) -> None:
        self.told.append(reason)

    def abort(self) -> None:
        self.told.append("abort")

    def add(self, message: object) -> PendingResponse:
        pending = PendingResponse(18, 0, 1)
        if isinstance(message, Deferred):
            pending.deferred = message
            pending.error_response = Refusal  # type: ignore[assignment]  # as for records
        else:
            pending.message = message  # type: ignore[assignment]  # any API's
        self.responses.add(pending)
        return pending

    def turn(self) -> None:
        planned, self.planned[:] = list(self.planned), []
        for call in planned:
            call()
        self.responses.flush()


@pytest.mark.parametrize("before", ["ready", "unresolved", "slow client"])
def test_responses_before_a_refused_one_are_sent(before: str) -> None:
    bench = Bench()
    first: Deferred[object] = Deferred()
    bench.add(first if before == "unresolved" else ApiVersionsResponse())
    if before == "slow client":
        bench.responses.writer.pause()
    bench.add(Refusal(MalformedRequest("no such version")))
    bench.turn()
    if before != "ready":
        assert (bench.written, bench.told) == ([], [])
    if before == "unresolved":
        first.resolve(ApiVersionsResponse())
    if before == "slow client":
        bench.responses.writer.resume()
    bench.turn()
    assert len(bench.written) == 1
    assert [line for line in bench.told if "no such version" in line] == bench.told != []
    assert bench.dispatcher.surprises == 0


def test_what_is_behind_a_refused_one_is_charged() -> None:
    bench = Bench()
    bench.add(Deferred())
    bench.add(Refusal(MalformedRequest("no such version")))
    bench.add(ApiVersionsResponse())
    bench.turn()
    bench.turn()
    queue = bench.responses.queue
    assert (queue.encoded, queue.charged_bytes > 0, bench.told) == (1, True, [])


def test_where_there_is_no_response_the_next_ones_are_joined_and_charged() -> None:
    bench = Bench()
    first: Deferred[object] = Deferred()
    bench.add(first)
    bench.add(Refusal(NoResponseError()))
    bench.add(ApiVersionsResponse())
    bench.turn()
    assert bench.responses.queue.encoded == 2
    first.resolve(ApiVersionsResponse())
    bench.turn()
    assert (len(bench.written), bench.told) == (1, [])
