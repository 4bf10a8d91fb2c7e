"""Members of a classic group, and the data that they send when they join."""

from __future__ import annotations

from typing import Final

from kbroker.coordinator.runtime.result import DeferredResponse
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinators.groups import JoinGroupResponse

UNKNOWN_MEMBER: Final = ""
"""The member id of a member that has none yet."""

Protocols = list[tuple[str, bytes]]
"""(name, metadata) of the assignment protocols that a member supports, in order of preference."""
_MEMBER_BYTES: Final = 1_500
PROTOCOL_BYTES: Final = 200
"""Memory of a member, and of each of its protocols, besides the data of the client."""


def said_bytes(protocols: Protocols, *texts: str | None) -> int:
    """Memory of a member with these protocols, ids and names."""
    size = _MEMBER_BYTES + sum(len(text) for text in texts if text)
    return size + sum(PROTOCOL_BYTES + len(name) + len(data) for name, data in protocols)


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """A rejected JoinGroup."""
    return JoinGroupResponse(error_code=error, member_id=member_id)


class Join:
    """One JoinGroup request, its bytes copied. rebalance_timeout_ms: -1 (v0) means the session
    timeout.
    """

    __slots__ = (
        "client_host",
        "client_id",
        "instance_id",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "version",
        "waiter",
    )

    def __init__(
        self,
        *,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        version: int,
        waiter: DeferredResponse,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = (
            rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms
        )
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.version = version
        self.waiter = waiter

    @property
    def size_bytes(self) -> int:
        """Memory that its data takes, including the id that a member without one gets."""
        member_id = self.member_id or self.instance_id or self.client_id
        return said_bytes(self.protocols, member_id, self.client_id, self.instance_id)
