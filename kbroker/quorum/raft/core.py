"""The quorum's core as its shell sees it: events in, effects out (docs/adr/0003).

Every event takes the monotonic time in ms and returns the effects to carry out, in order; the
shell is `quorum/driver`, in the simulation `tests/sim`. After each event the shell asks
`next_deadline_ms` and calls `poll` then. InvariantError from an event means that this node must
stop: two leaders in one epoch, or a committed record that the leader does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbroker.protocol.errors import ErrorCode
from kbroker.quorum.raft.effects import Effect, RaftRequest, RaftResponse
from kbroker.quorum.raft.offsets import SnapshotId
from kbroker.quorum.raft.voter_set import VoterSet


class RaftCore(Protocol):
    """One node of the quorum: a voter or an observer."""

    def start(self, now_ms: int) -> list[Effect]:
        """The first event: the state after a start (KIP-595). The only voter leads at once."""

    def poll(self, now_ms: int) -> list[Effect]:
        """Time has passed: elections, the quorum check, retries, the end of parked fetches. May be
        called at any time.
        """

    def next_deadline_ms(self) -> int | None:
        """The time at which `poll` is due; None if nothing is waited for."""

    def handle_request(
        self, token: int, request: RaftRequest, *, listener_name: str, version: int, now_ms: int
    ) -> list[Effect]:
        """Another node or a client sent a request; it is answered by a Respond with its token, now
        or in a later event. listener_name: the listener it came by, whose endpoints are named in
        the response. version: the request's, which is also the response's.
        """

    def request_abandoned(self, token: int) -> None:
        """The connection of a request that waits for its answer was closed."""

    def response_received(
        self, correlation_id: int, response: RaftResponse, now_ms: int
    ) -> list[Effect]:
        """The answer to a Send. An answer to a forgotten request has no effects."""

    def request_failed(self, correlation_id: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """A Send has no answer. error: BROKER_NOT_AVAILABLE if not connected or disconnected,
        REQUEST_TIMED_OUT, or UNSUPPORTED_VERSION if the destination cannot serve the request.
        """

    def propose(self, records: Sequence[bytes], now_ms: int) -> list[Effect]:
        """Records of the leader, one data batch. Raises InvariantError if this node does not lead,
        or for no records.
        """

    def flushed(self, end_offset: int, now_ms: int) -> list[Effect]:
        """A Flush is complete: the log is on disk up to end_offset (exclusive)."""

    def snapshot_written(
        self, snapshot_id: SnapshotId, size_bytes: int, now_ms: int
    ) -> list[Effect]:
        """This node wrote a snapshot of its own state, at a batch boundary not above the high
        watermark: it may be fetched from now on.
        """

    def log_cleaned(
        self, log_start_offset: int, snapshots: Sequence[SnapshotId], now_ms: int
    ) -> list[Effect]:
        """Retention advanced the log's start to the end of a snapshot and left these snapshots."""

    def snapshot_received(
        self,
        snapshot_id: SnapshotId,
        size_bytes: int,
        kraft_version: int,
        voters: VoterSet | None,
        now_ms: int,
    ) -> list[Effect]:
        """A FinishSnapshot is complete. kraft_version, voters: of its control records."""

    def snapshot_refused(self, snapshot_id: SnapshotId, now_ms: int) -> list[Effect]:
        """A fetched snapshot is damaged; its `.part` file was removed."""

    def resign(self, epoch: int, now_ms: int) -> list[Effect]:
        """The controller gives up leading that epoch. An older epoch has no effects."""

    def shutdown(self, timeout_ms: int, now_ms: int) -> list[Effect]:
        """This node stops: a leader resigns and names its successors. ShutdownComplete follows
        once another leader is known, or after timeout_ms.
        """
