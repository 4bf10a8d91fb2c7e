"""For tests of sliced handlers: services with a clock that each look moves on, and answers that
are waited for.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kbroker.ports import Deferred
from kbroker.protocol.apis import ApiKey
from kbroker.replication.time_slices import FairSlices
from kbroker.server.handlers import all_handlers
from kbroker.server.network.memory_pool import MemoryPool
from kbroker.server.quotas.client_quotas import ClientQuotas
from kbroker.server.requests import Outcome, RequestContext
from kbroker.server.services import Services
from kbroker.settings.broker import BrokerConfig
from tests.replication.test_time_slices import Ticks, Turns

HANDLER_OF = {handler.api_key: handler for handler in all_handlers()}
MANY = 1000


class Sliced:
    """What sliced handlers need of the services. limit: kbroker.response.max.bytes; seconds: of a
    slice, where a millisecond is one look at the clock.
    """

    def __init__(self, *, limit: int = 1 << 20, seconds: float = 0.004, **parts: Any) -> None:
        self.turns = Turns()
        self.timers = self.turns
        self.slices = FairSlices(self.turns, seconds=seconds, clock=Ticks())
        self.memory = MemoryPool()
        self.quotas = ClientQuotas()
        self.config = BrokerConfig.from_properties({"kbroker.response.max.bytes": str(limit)})
        self.node_id = 1
        self.is_broker = False
        self.local_controller: Any = None
        self.channel: Any = None
        self.most_steps = 0
        for name, part in parts.items():
            setattr(self, name, part)

    @property
    def services(self) -> Services:
        return cast(Services, self)

    def answer(self, outcome: Outcome) -> Any:
        """The response, after as many turns of the loop as it takes."""
        if isinstance(outcome, Deferred):
            while not outcome.done:
                self.turns.turn()
            return outcome.value
        return outcome


def begin(sliced: Sliced, api_key: ApiKey, request: Any, *, version: int | None = None) -> Any:
    handler = HANDLER_OF[api_key]
    image = SimpleNamespace(partition=lambda topic, index: object())
    sliced.image = image  # type: ignore[attr-defined]  # the fixture's
    context = RequestContext(api_key, handler.max_version if version is None else version)
    return handler.handle(sliced.services, context, request)


def in_slices(sliced: Sliced, api_key: ApiKey, request: Any) -> Any:
    outcome = begin(sliced, api_key, request)
    assert isinstance(outcome, Deferred)
    assert not outcome.done
    return sliced.answer(outcome)
