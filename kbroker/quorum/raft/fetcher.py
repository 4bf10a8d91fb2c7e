"""The follower's Fetch and FetchSnapshot, and the handling of their responses. KIP-595, KIP-630.

One request is in flight at a time. It is sent to the leader; while the leader is unknown or does
not answer, every second request is sent to a random bootstrap server, which may know another leader
(KAFKA-20514). A replica that may vote syncs the appended records before it fetches again, since the
next Fetch acknowledges it.
"""

from __future__ import annotations

import msgspec

from kbroker.model import InvariantError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.quorum import FetchSnapshotResponse
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.effects import Destination, FinishSnapshot, WriteSnapshotPart
from kbroker.quorum.raft.log_writer import LogWriter
from kbroker.quorum.raft.offsets import OffsetAndEpoch, SnapshotId
from kbroker.quorum.raft.requests.messages import (
    fetch_request,
    fetch_snapshot_request,
    fetched_partition,
    fetched_snapshot_partition,
)
from kbroker.quorum.raft.requests.request_manager import RequestManager, Sent
from kbroker.quorum.raft.states.epoch_states import Candidate, Follower, Leader, Unattached
from kbroker.quorum.raft.states.quorum_state import QuorumState


class Download(msgspec.Struct):
    """A snapshot that is being fetched. position: the number of bytes received; follower: the state
    in which it is fetched.
    """

    snapshot_id: SnapshotId
    follower: Follower
    position: int = 0
    is_finishing: bool = False


class Fetcher:
    """Keeps one replica's log equal to its leader's."""

    __slots__ = ("_download", "_in_flight", "_is_leader_silent", "_quorum", "_requests", "_writer")

    def __init__(self, quorum: QuorumState, requests: RequestManager, writer: LogWriter) -> None:
        self._quorum = quorum
        self._requests = requests
        self._writer = writer
        self._in_flight: Sent | None = None
        self._is_leader_silent = False
        self._download: Download | None = None

    # Sending.

    @property
    def _is_synced(self) -> bool:
        """Whether this replica syncs fetched records: its Fetch acknowledges them, or may do so
        soon.
        """
        return self._quorum.is_voter or self._quorum.config.can_be_voter

    def poll_unattached(self, state: Unattached, now_ms: int) -> int | None:
        """Look for the leader. Returns when to poll again."""
        return self._poll(self._requests.bootstrap_server(now_ms), now_ms)

    def poll_follower(self, state: Follower, now_ms: int) -> int | None:
        """Fetch from the leader. Returns when to poll again."""
        leader = self._requests.destination(state.leader_id)
        bootstrap = self._requests.bootstrap_server(now_ms)
        is_leader_lost = self._is_leader_silent or (
            not self._quorum.is_voter and state.fetch_deadline_ms <= now_ms
        )
        if leader is not None and self._requests.is_busy(leader.node_id):
            return None
        if leader is None or (is_leader_lost and bootstrap is not None):
            return self._poll(bootstrap, now_ms)
        if not self._requests.is_ready(leader.node_id, now_ms):
            leader = None
        return self._poll(leader or bootstrap, now_ms)

    def _poll(self, destination: Destination | None, now_ms: int) -> int | None:
        quorum, requests = self._quorum, self._requests
        if self._in_flight is not None and self._in_flight.state is quorum.state:
            return None
        if self._is_synced and not self._writer.is_flushed:
            self._writer.flush()
            return None
        if destination is None:
            leader_ready_ms = requests.ready_at_ms(quorum.leader_id)
            times = (leader_ready_ms, requests.bootstrap_ready_at_ms())
            return min((each for each in times if each is not None), default=None)
        download = self._present_download()
        is_leader = destination.node_id == quorum.leader_id
        if download is not None and download.is_finishing:
            return None
        request = (
            fetch_snapshot_request(quorum, download.snapshot_id, download.position)
            if download is not None and is_leader
            else fetch_request(quorum)
        )
        self._in_flight = requests.send(destination, request)
        return None

    def _present_download(self) -> Download | None:
        download = self._download
        if download is not None and download.follower is not self._quorum.state:
            # another node's snapshot with the same id may have other bytes
            if not download.is_finishing:
                self._download = None
            return None
        return download

    # Responses.

    def ended(self, sent: Sent, *, is_failed: bool) -> bool:
        """A request of any kind was answered or has failed. Returns whether it is the Fetch or
        FetchSnapshot in flight in the current state, so that the response is used.
        """
        if sent is not self._in_flight:
            return False
        self._in_flight = None
        is_leader = sent.destination.node_id == self._quorum.leader_id
        self._is_leader_silent = is_failed and is_leader
        return sent.state is self._quorum.state

    def fetched(self, response: FetchResponse, now_ms: int) -> bool:
        """The leader answered a Fetch without an error. Returns whether the response was valid."""
        state, partition = self._quorum.state, fetched_partition(response)
        if not isinstance(state, Follower) or partition is None:
            return False
        diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
        if diverging.epoch >= 0:
            self._truncate(OffsetAndEpoch(diverging.end_offset, diverging.epoch))
        elif snapshot.epoch >= 0 or snapshot.end_offset >= 0:
            if snapshot.epoch < 0 or snapshot.end_offset < 0:
                return False
            self._begin_download(state, SnapshotId(snapshot.end_offset, snapshot.epoch))
        else:
            records = partition.records
            data = records if isinstance(records, bytes | memoryview) else b""
            if not self._writer.append_batches(data, is_synced=self._is_synced):
                return False
            self._advance_high_watermark(partition.high_watermark)
        state.leader_answered(now_ms + self._quorum.config.fetch_timeout_ms)
        return True

    def _advance_high_watermark(self, high_watermark: int) -> None:
        quorum = self._quorum
        quorum.advance_high_watermark(min(quorum.log.end_offset, high_watermark))

    def _truncate(self, leader_end: OffsetAndEpoch) -> None:
        """The leader's log has another epoch at this replica's end: truncate to the end of the last
        common epoch.
        """
        quorum = self._quorum
        if leader_end.offset < quorum.high_watermark:
            raise InvariantError(
                f"node {quorum.local}: the leader {quorum.leader_id} of epoch {quorum.epoch} ends "
                f"epoch {leader_end.epoch} at offset {leader_end.offset}, below the high watermark "
                f"{quorum.high_watermark}"
            )
        own = quorum.log.end_offset_for_epoch(leader_end.epoch)
        end_offset = own.offset
        if own.epoch == leader_end.epoch:
            end_offset = min(own.offset, leader_end.offset)
        if end_offset < quorum.high_watermark:
            raise InvariantError(
                f"node {quorum.local}: its log agrees with the leader {quorum.leader_id} of epoch "
                f"{quorum.epoch} up to offset {end_offset} only, below the high watermark "
                f"{quorum.high_watermark}"
            )
        self._writer.truncate(end_offset)

    # Snapshots.

    def _begin_download(self, state: Follower, snapshot_id: SnapshotId) -> None:
        download = self._present_download()
        if download is None or download.snapshot_id != snapshot_id:
            self._download = Download(snapshot_id, state)

    def snapshot_fetched(self, response: FetchSnapshotResponse, now_ms: int) -> bool:
        """The leader answered a FetchSnapshot without an epoch error. Returns whether the response
        was valid.
        """
        quorum, download = self._quorum, self._present_download()
        state, partition = quorum.state, fetched_snapshot_partition(response)
        if not isinstance(state, Follower) or download is None or partition is None:
            return False
        if partition.error_code in (
            ErrorCode.SNAPSHOT_NOT_FOUND,
            ErrorCode.POSITION_OUT_OF_RANGE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ):
            # retention deleted it: the response to the next Fetch has the current one
            self._download = None
            state.leader_answered(now_ms + quorum.config.fetch_timeout_ms)
            return True
        if partition.error_code:
            return False
        snapshot_id = SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        data = partition.unaligned_records
        if (
            snapshot_id != download.snapshot_id
            or partition.position != download.position
            or not isinstance(data, bytes | memoryview)
            or not 0 < len(data) <= partition.size - partition.position
        ):
            return False
        quorum.emit(WriteSnapshotPart(snapshot_id, download.position, bytes(data)))
        download.position += len(data)
        if download.position == partition.size:
            download.is_finishing = True
            quorum.emit(FinishSnapshot(snapshot_id))
        state.leader_answered(now_ms + quorum.config.fetch_timeout_ms)
        return True

    def snapshot_received(
        self, snapshot_id: SnapshotId, size_bytes: int, configuration: QuorumConfiguration
    ) -> None:
        """A fetched snapshot is complete and on disk: it replaces a log that does not reach it.
        Records of the log above the high watermark may be of a later epoch than the snapshot, and
        reach further: since the snapshot is committed, those records never will be.
        """
        self._download = None
        quorum = self._quorum
        if isinstance(quorum.state, Leader | Candidate) or quorum.log.covers(snapshot_id):
            return
        if snapshot_id.end_offset <= quorum.high_watermark:
            raise InvariantError(
                f"node {quorum.local}: snapshot {snapshot_id} contradicts the committed records of "
                f"a log up to {quorum.high_watermark}"
            )
        self._writer.install(snapshot_id, size_bytes, configuration)
        quorum.advance_high_watermark(snapshot_id.end_offset)

    def snapshot_refused(self) -> None:
        """A fetched snapshot is damaged: the next Fetch starts again."""
        self._download = None
