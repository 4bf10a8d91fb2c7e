"""A conversation with a fresh broker, step by step: what is asked, and how an answer is compared.

`record.py` holds it with Apache Kafka and keeps the answers; the test holds it with kbroker.
Values that differ from run to run (ids, ports, times) are replaced by names before comparing.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from kbroker.model import ZERO_UUID
from kbroker.protocol.codecs.schema import Struct
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.admin.configs import (
    AlterConfigsResponse,
    IncrementalAlterConfigsResponse,
)
from kbroker.protocol.messages.admin.quotas import AlterClientQuotasResponse
from kbroker.protocol.messages.admin.topics import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
)
from kbroker.protocol.messages.authentication import AlterUserScramCredentialsResponse
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest, ListGroupsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from tests.e2e.wire import call
from tests.reference.basics import steps
from tests.reference.step import UNKNOWN_ID, State, Step


class Names:
    """Gives each value that differs from run to run a name: the first topic id is `uuid 1`."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, object], str] = {}

    def of(self, kind: str, value: object) -> str:
        number = len([key for key in self._names if key[0] == kind]) + 1
        return self._names.setdefault((kind, value), f"{kind} {number}")


_FIXED_IDS = {ZERO_UUID: "zero", UNKNOWN_ID: "unknown"}
_NAMING = {"name", "group_id", "key", "resource_name", "transactional_id"}


def _name_of(item: dict[str, object]) -> str:
    return " ".join(str(item[name]) for name in (*sorted(_NAMING), "topic_id") if name in item)


_RUN_SPECIFIC = {
    "port": "port",
    "cluster_id": "cluster",
    "member_id": "member",
    "leader": "member",
    "session_id": "session",
    "producer_id": "producer",
    "log_append_time_ms": "time",
    "log_dir": "dir",
}
_MEASURES = {
    "total_bytes": "size",
    "usable_bytes": "size",
    "transaction_start_time_ms": "time",
}


def plain(value: object, names: Names, field_name: str = "") -> object:
    """A message as JSON values, what differs from run to run replaced."""
    if isinstance(value, Struct):
        return {
            name: plain(getattr(value, name), names, name)
            for name in (item.name for item in type(value).FIELDS)
        }
    if isinstance(value, list):
        items = [plain(item, names, field_name) for item in value]
        # Kafka's order is often that of a hash map; what has a name is compared by name.
        named = [item for item in items if isinstance(item, dict) and _NAMING & item.keys()]
        if len(named) == len(items):
            return sorted(named, key=_name_of)
        members = [item for item in items if isinstance(item, dict) and "member_id" in item]
        if len(members) == len(items):
            return sorted(members, key=lambda item: str(item["member_id"]))
        by_index = [item for item in items if isinstance(item, dict) and "partition_index" in item]
        if len(by_index) == len(items):
            return sorted(by_index, key=lambda item: int(item["partition_index"]))
        return items
    if field_name == "topic_id" and isinstance(value, bytes):
        return _FIXED_IDS.get(value) or names.of("uuid", value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if field_name in _MEASURES and isinstance(value, int) and value >= 0:
        return _MEASURES[field_name]
    kind = _RUN_SPECIFIC.get(field_name)
    if (
        kind
        and value not in (-1, 0, "", None)
        and not (kind == "member" and isinstance(value, int))
    ):
        return names.of(kind, value)
    return value


def settle(host: str, port: int) -> None:
    """Wait for the group coordinator: its topic is made at the first request for it."""
    for _ in range(200):
        with socket.create_connection((host, port), timeout=10) as connection:
            found: Any = call(connection, FindCoordinatorRequest(key="settle"), 0)
            if found.error_code == 0:
                listed: Any = call(connection, ListGroupsRequest(), 0)
                if listed.error_code == 0:
                    return
        time.sleep(0.05)
    raise TimeoutError("no group coordinator within 10 s")


AGAIN_S = 30.0
CHANGES = (
    AlterClientQuotasResponse,
    AlterConfigsResponse,
    AlterUserScramCredentialsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    IncrementalAlterConfigsResponse,
)
"""Answers to what changes the metadata, which a broker of a cluster learns a little later."""
NOT_READY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""A coordinator's topic is made, or read."""


def await_topics(host: str, port: int, names: tuple[str, ...]) -> None:
    """Wait until the broker tells of these topics."""
    if not names:
        return
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    for _ in range(200):
        with socket.create_connection((host, port), timeout=10) as connection:
            request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
            found: Any = call(connection, request, 9)
            if all(topic.error_code == 0 for topic in found.topics):
                return
        time.sleep(0.05)
    raise TimeoutError(f"no topics {names} within 10 s")


def _is_not_ready(answer: Any) -> bool:
    return getattr(answer, "error_code", 0) in NOT_READY


def hold(
    host: str,
    port: int,
    pause_s: float = 0.0,
    conversation: Callable[[], Iterator[Step]] = steps,
) -> dict[str, object]:
    """Ask everything of a fresh broker; gives the comparable answer of each step.

    A broker that ends the connection instead of answering has the answer "connection closed".
    pause_s: waited after each request that changes metadata, for a broker that tells them later.
    """
    settle(host, port)
    state, names = State(), Names()
    answers: dict[str, object] = {}
    connection = socket.create_connection((host, port), timeout=20)
    try:
        for step in conversation():
            try:
                answer: Any = call(connection, step.request(state), step.version)
                deadline = time.monotonic() + AGAIN_S
                while _is_not_ready(answer) or (step.again is not None and step.again(answer)):
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{step.name}: {answer} for {AGAIN_S:.0f} s")
                    time.sleep(0.05)
                    answer = call(connection, step.request(state), step.version)
            except ConnectionError:
                connection.close()
                connection = socket.create_connection((host, port), timeout=20)
                answers[step.name] = "connection closed"
                continue
            if step.keep is not None:
                step.keep(state, answer)
            answers[step.name] = plain(answer, names)
            await_topics(host, port, step.awaits)
            if step.awaits or isinstance(answer, CHANGES):
                time.sleep(pause_s)
    finally:
        connection.close()
    return answers
