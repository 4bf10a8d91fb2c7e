"""Effects: the operations that the quorum's core requests from its shell (docs/adr/0003).

The shell executes all effects of one event in list order before it passes the next event to the
core. PersistState and the effects on the log (Append..., Truncate..., InstallSnapshot) are
complete, though not synced unless their docstring says so, before the next effect of the list
begins; so a Send or Respond can rely on the effects before it. Flush is only started: its
completion is the event `flushed`. Send and Respond never block and may get lost.

A node that cannot execute an effect (a full or failed disk) stops: it passes no further event to
the core.
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
"""The largest batch that Kafka's readers of the metadata log expect."""

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
"""The requests of the quorum. The core only sends ApiVersions and never answers it."""

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
    """Remove all records from end_offset on. Synced, since the truncated offsets may be written
    again in another epoch. A Flush in progress is not cancelled.
    """

    end_offset: int


class Flush(msgspec.Struct, frozen=True):
    """Sync the log up to its current end or further, off the loop, then call `flushed(end_offset)`
    with the synced end. At most one Flush is in progress: the core requests the next one only after
    `flushed`.

    end_offset: the log's end when the effect was made, exclusive.
    """

    end_offset: int


class Commit(msgspec.Struct, frozen=True):
    """All records below high_watermark (exclusive) are committed: pass them to the state
    machines.
    """

    high_watermark: int


class LeaderChanged(msgspec.Struct, frozen=True):
    """Another leader or epoch is known.

    leader_id: -1 if no leader is known, also after this node resigned. epoch_start_offset: the
    offset of this node's own LeaderChange record if it leads, else None; the controller is active
    once all records below it are replayed. The outcome of records that a former leader appended and
    did not see committed is unknown.
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
    correlation_id. Fields that the destination's version lacks are dropped, or the request fails
    with UNSUPPORTED_VERSION. timeout_ms: the request fails after that time.
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
    """Send the response to the request with that token. read: the shell puts these bytes into the
    response's only partition. A request without a Respond waits (a parked Fetch): the core responds
    later.
    """

    token: int
    response: RaftResponse
    read: ReadRecords | ReadSnapshot | None = None


class WriteSnapshotPart(msgspec.Struct, frozen=True):
    """Write these bytes of a fetched snapshot at position into its `.part` file; position 0 starts
    a new file.
    """

    snapshot_id: SnapshotId
    position: int
    data: bytes


class FinishSnapshot(msgspec.Struct, frozen=True):
    """Sync the `.part` file, check it and rename it to its final name, off the loop; then call
    `snapshot_received` with the content of its control records, or `snapshot_refused`.
    """

    snapshot_id: SnapshotId


class InstallSnapshot(msgspec.Struct, frozen=True):
    """Truncate the log fully: it starts and ends at the snapshot's end offset, synced. The state
    machines load the snapshot, which replaces their state.
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
