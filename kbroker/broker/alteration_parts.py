"""The resources of an AlterConfigs or IncrementalAlterConfigs that the active controller decides
on, on their way there in parts. What a broker decides itself (`broker_settings`) does not come
here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any

from kbroker.broker.controller_channel import BrokerChannel
from kbroker.controller.configs.configs import (
    Alteration,
    AlterationOutcome,
    Alterations,
    AlteredResource,
)
from kbroker.model import ClientIdentity
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.time_slices import Steps


class AlterationParts:
    """The parts of one request.

    channel: to the active controller; says how large the parts are, and whether they wait for each
    other. client: in whose name. incremental, validate_only, from_broker: see `Alterations`.
    max_bytes: the largest request that can be passed on to another node.
    """

    __slots__ = (
        "_asked",
        "_channel",
        "_client",
        "_from_broker",
        "_incremental",
        "_limits",
        "_max_bytes",
        "_part",
        "_size_bytes",
        "_validate_only",
        "_weight",
    )

    def __init__(
        self,
        channel: BrokerChannel,
        client: ClientIdentity,
        *,
        incremental: bool,
        validate_only: bool,
        from_broker: bool,
        max_bytes: int,
    ) -> None:
        self._channel = channel
        self._client = client
        self._incremental = incremental
        self._validate_only = validate_only
        self._from_broker = from_broker
        self._limits = channel.alteration_limits
        self._max_bytes = max_bytes
        self._part: dict[int, AlteredResource] = {}
        self._weight = self._size_bytes = 0
        self._asked: list[tuple[Sequence[int], Deferred[list[AlterationOutcome]]]] = []

    def add(self, place: int, resource: AlteredResource) -> Steps[None]:
        """The next resource, with its place in the request. Raises KafkaError for one that is too
        large to be passed on.
        """
        limits = self._limits
        weight, size_bytes = 1 + len(resource.alterations), 0
        is_full = self._weight + weight > limits.settings
        if limits.size_bytes is not None:
            size_bytes = sum(map(_size_of, resource.alterations))
            if size_bytes > self._max_bytes:
                message = "The settings of a resource are too large to be passed on."
                raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
            is_full = is_full or self._size_bytes + size_bytes > limits.size_bytes
        if self._part and is_full:
            yield from self._submit()
        self._part[place] = resource
        self._weight += weight
        self._size_bytes += size_bytes

    def _submit(self) -> Steps[None]:
        request = Alterations(
            list(self._part.values()),
            incremental=self._incremental,
            validate_only=self._validate_only,
            from_broker=self._from_broker,
        )
        answer = self._channel.alter_configs(request, self._client)
        self._asked.append((tuple(self._part), answer))
        self._part, self._weight, self._size_bytes = {}, 0, 0
        yield None if answer.done or not self._limits.one_at_a_time else answer

    def outcomes(
        self,
    ) -> Generator[Deferred[Any] | None, None, list[Iterable[tuple[int, AlterationOutcome]]]]:
        """The outcomes of all resources, with their places. Raises KafkaError if the controller did
        not answer.
        """
        if self._part:
            yield from self._submit()
        found: list[Iterable[tuple[int, AlterationOutcome]]] = []
        for places, answer in self._asked:
            if not answer.done:
                yield answer
            found.append(zip(places, answer.value, strict=True))
        return found


def _size_of(alteration: Alteration) -> int:
    """Bytes on the wire, at most."""
    return 16 + len(alteration.name.encode()) + len((alteration.value or "").encode())
