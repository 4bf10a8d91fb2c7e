"""Effects: what the quorum's core asks of its shell (docs/adr/0003).

The shell carries out the effects of one event in list order, to the end of the list, before it
hands the core the next event. PersistState and the effects on the log (Append..., Truncate...,
InstallSnapshot) are complete, though not synced unless their docstring says so, before the next
effect of the list begins; so a Send or Respond rests on what stands before it. Flush is only begun:
its completion is the event `flushed`. Send and Respond never block and may get lost.

A node that cannot carry out an effect (a full or dead disk) stops: it hands the core no further
event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from kbroker.protocol.batches.control_records import ControlType
from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.fetch import FetchRequest, FetchResponse
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)
from kbroker.quorum.raft.election_state import ElectionState
from kbroker.quorum.raft.offsets import SnapshotId

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Kafka's readers of the metadata log expect no larger batch."""

RaftRequest = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | DescribeQuorumRequest
    | AddRaftVoterRequest
    | RemoveRaftVoterRequest
    | UpdateRaftVoterRequest
    | ApiVersionsRequest
)
"""The requests of the quorum. ApiVersions is only sent, never answered, by the core."""

RaftResponse = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | DescribeQuorumResponse
    | AddRaftVoterResponse
    | RemoveRaftVoterResponse
    | UpdateRaftVoterResponse
    | ApiVersionsResponse
)


class PersistState(msgspec.Struct, frozen=True):
    """Replace the `quorum-state` file, synced (file and folder), before the next effect.

    kraft_version: 0 writes the file's data version 0, which holds voter_ids too; 1 data version 1.
    """

    state: ElectionState
    kraft_version: int = 0
    voter_ids: tuple[int, ...] = ()


class AppendRecords(msgspec.Struct, frozen=True):
    """The leader appends these records as one data batch at base_offset, not synced."""

    epoch: int
    base_offset: int
    records: Sequence[bytes]


class AppendControl(msgspec.Struct, frozen=True):
    """The leader appends these control records as one control batch at base_offset, not synced."""

    epoch: int
    base_offset: int
    records: tuple[tuple[ControlType, Message], ...]


class AppendBatches(msgspec.Struct, frozen=True):
    """A follower appends the leader's batches as they are, not synced.

    batches: whole batches that continue the log at base_offset, CRC and epochs checked. end_offset:
    exclusive.
    """

    base_offset: int
    end_offset: int
    batches: bytes


class Truncate(msgspec.Struct, frozen=True):
    """Remove everything from end_offset on. Synced, since the truncated records may return in
    another epoch. A Flush that is under way goes on.
    """

    end_offset: int


class Flush(msgspec.Struct, frozen=True):
    """Sync the log up to its present end or further, off the loop, then call
    `flushed(end_offset)` with the end that was synced. At most one Flush is under way: the core
    begins the next one only after `flushed`.

    end_offset: the log's end when the effect was made, exclusive.
    """

    end_offset: int


class Commit(msgspec.Struct, frozen=True):
    """Everything below high_watermark (exclusive) is committed: hand it to the state machines."""

    high_watermark: int


class LeaderChanged(msgspec.Struct, frozen=True):
    """The leader of the quorum, as this node knows it, is another one, or it is in another epoch.

    leader_id: -1 if none is known, also after this node resigned. epoch_start_offset: of the
    LeaderChange record of this node's own epoch if it leads, else None; the controller is active
    once everything below it is replayed. What a former leader appended and did not see committed
    has an unknown outcome.
    """

    epoch: int
    leader_id: int
    epoch_start_offset: int | None = None


class Destination(msgspec.Struct, frozen=True):
    """The node a request goes to. node_id: negative for a bootstrap server, whose id is unknown:
    -2 is the first one of the list, -3 the second.
    """

    node_id: int
    host: str
    port: int


class Send(msgspec.Struct, frozen=True):
    """Send a request; then call `response_received` or `request_failed` once, with this
    correlation_id. Fields that the destination's version lacks are dropped, or it fails with
    UNSUPPORTED_VERSION. timeout_ms: after it the request has failed.
    """

    correlation_id: int
    destination: Destination
    request: RaftRequest
    timeout_ms: int


class ReadRecords(msgspec.Struct, frozen=True):
    """The records of a Fetch response: whole batches from from_offset to the log's end, at most
    max_bytes but always one batch if there is one.
    """

    from_offset: int
    max_bytes: int


class ReadSnapshot(msgspec.Struct, frozen=True):
    """The unaligned records of a FetchSnapshot response: the snapshot's bytes from position
    (inclusive), at most max_bytes.
    """

    snapshot_id: SnapshotId
    position: int
    max_bytes: int


class Respond(msgspec.Struct, frozen=True):
    """Answer the request of that token. read: bytes that the shell puts into the response's only
    partition. A request without a Respond waits (a parked Fetch): the core answers it later.
    """

    token: int
    response: RaftResponse
    read: ReadRecords | ReadSnapshot | None = None


class WriteSnapshotPart(msgspec.Struct, frozen=True):
    """Write these bytes of a fetched snapshot at position into its `.part` file; position 0 begins
    a new file.
    """

    snapshot_id: SnapshotId
    position: int
    data: bytes


class FinishSnapshot(msgspec.Struct, frozen=True):
    """Sync the `.part` file, check it and give it its final name, off the loop; then call
    `snapshot_received` with what its control records say, or `snapshot_refused`.
    """

    snapshot_id: SnapshotId


class InstallSnapshot(msgspec.Struct, frozen=True):
    """Truncate the log fully: it begins and ends at the snapshot's end offset, synced. The state
    machines load the snapshot; what they held before is void.
    """

    snapshot_id: SnapshotId


class ShutdownComplete(msgspec.Struct, frozen=True):
    """The quorum no longer needs this node: it may stop."""


Effect = (
    PersistState
    | AppendRecords
    | AppendControl
    | AppendBatches
    | Truncate
    | Flush
    | Commit
    | LeaderChanged
    | Send
    | Respond
    | WriteSnapshotPart
    | FinishSnapshot
    | InstallSnapshot
    | ShutdownComplete
)
