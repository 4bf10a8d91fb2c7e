"""One partition of `__share_group_state` as state: the delivery state of share partitions
(KIP-932).

The log holds a snapshot of each share partition (type 0) and the updates since (type 1). Requests
are decided here as `CoordinatorResult`s; `replay` alone changes state. This is a core: the runtime
has the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, cast

from kbroker.coordinator.runtime.records import CoordinatorRecord
from kbroker.coordinator.runtime.result import CoordinatorResult, Results, in_batches
from kbroker.coordinator.share_state.combination import combine, combine_changed
from kbroker.model import Uuid
from kbroker.protocol.codecs.codec import decode
from kbroker.protocol.codecs.schema import CoordinatorKey, CoordinatorValue
from kbroker.protocol.errors import ErrorCode, KafkaError, MalformedRequest
from kbroker.protocol.messages.stored.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from kbroker.protocol.share_partition_state import (
    UNINITIALIZED,
    UNKNOWN_COUNT,
    SharePlace,
    StateBatch,
    StateFound,
    StateSummary,
    StateWrite,
)

TOMBSTONES_PER_BATCH: Final = 200
SNAPSHOTS_PER_BATCH: Final = 200
"""Approximate weight of a batch of snapshots, see `Snapshots`."""
CHARACTERS_PER_WEIGHT: Final = 64
TOPICS_PER_BATCH: Final = 1000
"""How many topics `tombstones_of_deleted_topics` checks before it pauses."""

_INT16: Final = struct.Struct(">h")
_CLASSES: Final[Mapping[int, tuple[type[CoordinatorKey], type[CoordinatorValue]]]] = {
    0: (ShareSnapshotKey, ShareSnapshotValue),
    1: (ShareUpdateKey, ShareUpdateValue),
}

_RecordBatch = ShareUpdateValue.StateBatch | ShareSnapshotValue.StateBatch


class StateSettings(Protocol):
    """The part of the broker's configuration that the share coordinator's shards read."""

    @property
    def share_coordinator_snapshot_update_records_per_snapshot(self) -> int: ...


class ShareTopics(Protocol):
    """The topics of the cluster, by id."""

    @property
    def topics_by_id(self) -> Container[Uuid]: ...


class ShareState:
    """The state of one share partition. update_count: the number of updates since the snapshot."""

    __slots__ = (
        "batches",
        "delivery_complete_count",
        "leader_epoch",
        "snapshot_epoch",
        "start_offset",
        "state_epoch",
        "update_count",
    )

    def __init__(self, value: ShareSnapshotValue) -> None:
        self.snapshot_epoch = value.snapshot_epoch
        self.state_epoch = value.state_epoch
        self.leader_epoch = value.leader_epoch
        self.start_offset = value.start_offset
        self.delivery_complete_count = value.delivery_complete_count
        stored: Sequence[_RecordBatch | StateBatch] = value.state_batches
        batches = _of_record(stored)
        is_own = batches is stored  # combined by `_snapshot`
        self.batches = batches if is_own else combine(batches, value.start_offset)
        self.update_count = 0

    def update(self, value: ShareUpdateValue) -> None:
        """Apply an update."""
        self.leader_epoch = value.leader_epoch
        if value.start_offset != UNINITIALIZED:
            self.start_offset = value.start_offset
        self.delivery_complete_count = value.delivery_complete_count
        changed = _of_record(value.state_batches)
        self.batches = combine_changed(self.batches, changed, self.start_offset)
        self.update_count += 1


class Snapshots(NamedTuple):
    """Some snapshots, for one batch of the log. weight: the number of states, of their batches, and
    of `CHARACTERS_PER_WEIGHT` of their group ids, which may have 32,767 bytes.
    """

    records: list[CoordinatorRecord]
    weight: int


class ShareStateShard:
    """The states of one partition of `__share_group_state`. wall_ms: the wall clock, for stored
    timestamps.
    """

    __slots__ = (
        "_by_topic",
        "_settings",
        "_topics",
        "_wall_ms",
        "has_deleted_topics",
        "record_count",
        "states",
    )

    def __init__(
        self,
        settings: StateSettings,
        wall_ms: Callable[[], int],
        topics: Callable[[], ShareTopics],
    ) -> None:
        self.states: dict[SharePlace, ShareState] = {}
        self._by_topic: dict[Uuid, dict[SharePlace, None]] = {}
        """The keys of `states`."""
        self.record_count = 0
        """The number of records in the log; `ShareCoordinator` sets it when it has pruned the
        log.
        """
        self.has_deleted_topics = False
        """Whether topics were deleted while the log was loaded."""
        self._settings = settings
        self._wall_ms = wall_ms
        self._topics = topics

    # -- replay ------------------------------------------------------------------------------

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        """The record of a key and a value, or None for an unknown type or version. Raises
        KafkaError(CORRUPT_MESSAGE) for undecodable bytes.
        """
        try:
            if key is None or len(key) < 2 or (value is not None and len(value) < 2):
                raise MalformedRequest("no key, or too short")
            classes = _CLASSES.get(_INT16.unpack_from(key)[0])
            if classes is None:
                return None
            decoded_key, _ = decode(classes[0], key, 0, 2)
            if value is None:
                return CoordinatorRecord(decoded_key, None)
            version = int(_INT16.unpack_from(value)[0])
            if version not in classes[1].VERSIONS:
                return None
            decoded_value, _ = decode(classes[1], value, version, 2)
            return CoordinatorRecord(decoded_key, decoded_value, version)
        except MalformedRequest as error:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"not a record of __share_group_state: {error}"
            ) from error

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record of the log."""
        self.record_count += 1
        key, value = record.key, record.value
        if isinstance(key, ShareSnapshotKey):
            place = SharePlace(key.group_id, (key.topic_id, key.partition))
            if isinstance(value, ShareSnapshotValue):
                self.states[place] = ShareState(value)
                self._by_topic.setdefault(key.topic_id, {})[place] = None
            elif self.states.pop(place, None) is not None:
                places = self._by_topic[key.topic_id]
                del places[place]
                if not places:
                    del self._by_topic[key.topic_id]
        elif isinstance(key, ShareUpdateKey) and isinstance(value, ShareUpdateValue):
            state = self.states.get(SharePlace(key.group_id, (key.topic_id, key.partition)))
            if state is not None:
                state.update(value)

    def replay_transactional(self, producer_id: int, record: CoordinatorRecord) -> None:
        """Not called: no record of this topic belongs to a transaction."""

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Not called: no record of this topic belongs to a transaction."""

    def on_loaded(self, now_ms: int) -> Results:
        """Delete the states of topics that were deleted while the log was loaded."""
        if not self.has_deleted_topics:
            return []
        self.has_deleted_topics = False
        return [
            CoordinatorResult(batch, None) for batch in self.tombstones_of_deleted_topics() if batch
        ]

    def unload(self, error: ErrorCode) -> Results:
        """No request waits in this shard."""
        self.states = {}
        self._by_topic = {}
        return []

    def next_deadline_ms(self) -> int | None:
        """This shard has no deadlines."""
        return None

    def on_deadline(self, now_ms: int) -> Results:
        """This shard has no deadlines."""
        return []

    def changes(self, record: CoordinatorRecord) -> str | None:
        """None: the log lines of groups are sufficient."""
        return None

    # -- requests ----------------------------------------------------------------------------

    def read(self, key: SharePlace, leader_epoch: int) -> CoordinatorResult[StateFound]:
        """ReadShareGroupState: a later leader epoch is stored. Raises KafkaError."""
        state = self._known(key)
        if 0 <= leader_epoch < state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        self._check_topic(key)
        records = []
        if leader_epoch > state.leader_epoch:
            same = StateWrite(
                state.state_epoch,
                leader_epoch,
                state.start_offset,
                state.delivery_complete_count,
                (),
            )
            records.append(self._record(key, state, same, leader_epoch))
        found = StateFound(ErrorCode.NONE, state.state_epoch, state.start_offset, state.batches)
        return CoordinatorResult(records, found)

    def write(self, key: SharePlace, write: StateWrite) -> CoordinatorResult[ErrorCode]:
        """WriteShareGroupState. Raises KafkaError."""
        state = self._known(key)
        if 0 <= write.leader_epoch < state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if 0 <= write.state_epoch < state.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        self._check_topic(key)
        record = self._record(key, state, write, state.leader_epoch)
        return CoordinatorResult([record], ErrorCode.NONE)

    def initialize(
        self, key: SharePlace, state_epoch: int, start_offset: int
    ) -> CoordinatorResult[ErrorCode]:
        """InitializeShareGroupState: create the state, or reset it. Raises KafkaError."""
        self._check_partition(key)
        state = self.states.get(key)
        if state is not None and state_epoch < state.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        self._check_topic(key)
        now_ms = self._wall_ms()
        value = ShareSnapshotValue(
            snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN_COUNT if start_offset == UNINITIALIZED else 0,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
        )
        record = CoordinatorRecord(_snapshot_key(key), value)
        return CoordinatorResult([record], ErrorCode.NONE)

    def delete(self, key: SharePlace) -> CoordinatorResult[ErrorCode]:
        """DeleteShareGroupState: deleting a state that does not exist succeeds. Raises
        KafkaError.
        """
        self._check_partition(key)
        records = [CoordinatorRecord(_snapshot_key(key), None)] if key in self.states else []
        return CoordinatorResult(records, ErrorCode.NONE)

    def summarize(self, key: SharePlace) -> CoordinatorResult[StateSummary]:
        """ReadShareGroupStateSummary. Raises KafkaError."""
        self._check_partition(key)
        state = self.states.get(key)
        if state is None:
            return CoordinatorResult([], StateSummary(ErrorCode.NONE))
        summary = StateSummary(
            ErrorCode.NONE,
            state.start_offset,
            state.leader_epoch,
            state.delivery_complete_count,
            state.state_epoch,
        )
        return CoordinatorResult([], summary)

    def tombstones_of_deleted_topics(self) -> Iterator[Sequence[CoordinatorRecord]]:
        """The tombstones of states whose topics no longer exist, in batches of at most
        `TOMBSTONES_PER_BATCH`, bounded as by `in_batches`. Some batches are empty: the caller may
        pause after each, and the shard may change during a pause.
        """
        for count, topic_id in enumerate(list(self._by_topic), 1):
            if count % TOPICS_PER_BATCH == 0:
                yield []
            if topic_id in self._topics().topics_by_id:
                continue
            places = list(self._by_topic.get(topic_id, ()))
            for start in range(0, len(places), TOMBSTONES_PER_BATCH):
                tombstones = [
                    CoordinatorRecord(_snapshot_key(key), None)
                    for key in places[start : start + TOMBSTONES_PER_BATCH]
                    if key in self.states
                ]
                for batch in in_batches(tombstones, TOMBSTONES_PER_BATCH):
                    yield batch.records

    def snapshots(self) -> Iterator[Snapshots]:
        """Snapshots of all states; once they are written, no record before the first of them is
        needed. The caller may pause between two, and the shard may change during a pause: a state
        that is created meanwhile starts with a snapshot.
        """
        records: list[CoordinatorRecord] = []
        weight = 0
        for key in list(self.states):
            state = self.states.get(key)
            if state is None:  # deleted during a pause
                continue
            same = StateWrite(
                state.state_epoch,
                state.leader_epoch,
                state.start_offset,
                state.delivery_complete_count,
                (),
            )
            records.append(self._snapshot(key, state, same, state.leader_epoch))
            weight += 1 + len(state.batches) + len(key.group_id) // CHARACTERS_PER_WEIGHT
            if weight >= SNAPSHOTS_PER_BATCH:
                yield Snapshots(records, weight)
                records, weight = [], 0
        if records:
            yield Snapshots(records, weight)

    # -- helpers -----------------------------------------------------------------------------

    def _known(self, key: SharePlace) -> ShareState:
        self._check_partition(key)
        state = self.states.get(key)
        if state is None:
            message = f"Group {key.group_id} has no state of partition {key.place[1]}."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return state

    @staticmethod
    def _check_partition(key: SharePlace) -> None:
        if key.place[1] < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no partition {key.place[1]}.")

    def _check_topic(self, key: SharePlace) -> None:
        if key.place[0] not in self._topics().topics_by_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _record(
        self, key: SharePlace, state: ShareState, write: StateWrite, leader_epoch: int
    ) -> CoordinatorRecord:
        """An update, or a snapshot after as many updates as the configuration allows."""
        if (
            state.update_count
            < self._settings.share_coordinator_snapshot_update_records_per_snapshot
        ):
            update = ShareUpdateValue(
                snapshot_epoch=state.snapshot_epoch,
                leader_epoch=leader_epoch,
                start_offset=write.start_offset,
                delivery_complete_count=write.delivery_complete_count,
                state_batches=cast(list[ShareUpdateValue.StateBatch], write.batches),
            )
            place = ShareUpdateKey(
                group_id=key.group_id, topic_id=key.place[0], partition=key.place[1]
            )
            return CoordinatorRecord(place, update)
        return self._snapshot(key, state, write, leader_epoch)

    def _snapshot(
        self, key: SharePlace, state: ShareState, write: StateWrite, leader_epoch: int
    ) -> CoordinatorRecord:
        start = state.start_offset if write.start_offset == UNINITIALIZED else write.start_offset
        now_ms = self._wall_ms()
        value = ShareSnapshotValue(
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start,
            delivery_complete_count=write.delivery_complete_count,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
            state_batches=cast(
                list[ShareSnapshotValue.StateBatch],
                combine_changed(state.batches, write.batches, start),
            ),
        )
        return CoordinatorRecord(_snapshot_key(key), value)


def _snapshot_key(key: SharePlace) -> ShareSnapshotKey:
    return ShareSnapshotKey(group_id=key.group_id, topic_id=key.place[0], partition=key.place[1])


def _of_record(batches: Sequence[_RecordBatch | StateBatch]) -> Sequence[StateBatch]:
    """The batches of a record that was read, or of one that this shard wrote, which has
    StateBatches: the encoder only needs fields with these names (45,000 batches fit into a record).
    """
    if batches and isinstance(batches[0], StateBatch):
        return cast(Sequence[StateBatch], batches)
    return [
        StateBatch(
            batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
        )
        for batch in batches
    ]
