"""One member of a classic group."""

from __future__ import annotations

from kbroker.coordinator.group.membership.join import Protocols, said_bytes
from kbroker.coordinator.runtime.deadlines import Deadline
from kbroker.coordinator.runtime.result import DeferredResponse
from kbroker.protocol.messages.stored.group_records import GroupMetadataValue


class Member:
    """One member. is_new: from its first join until it is part of a generation.

    former_assignment: that of the previous generation, whose partitions a cooperative member may
    still own. join_waiter, sync_waiter: the requests that wait for a response. session: its
    deadline, which every request of the member postpones.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "former_assignment",
        "instance_id",
        "is_new",
        "join_waiter",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_waiter",
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
        protocols: Protocols,
        session: Deadline,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.session = session
        self.assignment = assignment
        self.former_assignment = b""
        self.is_new = False
        self.join_waiter: DeferredResponse | None = None
        self.sync_waiter: DeferredResponse | None = None

    @property
    def size_bytes(self) -> int:
        """Memory that the member's data takes."""
        return said_bytes(self.protocols, self.member_id, self.client_id, self.instance_id)

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for that protocol; b"" if the member does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """The first of its protocols that is among candidates; it supports all of them."""
        return next(name for name, _ in self.protocols if name in candidates)

    def to_value(
        self, protocol_name: str | None, assignment: bytes
    ) -> GroupMetadataValue.MemberMetadata:
        """The member as it is stored in a group's record."""
        return GroupMetadataValue.MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )
