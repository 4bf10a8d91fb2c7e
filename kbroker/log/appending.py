"""Appending to a log: `append` for the batches of clients and coordinators, and
`append_as_follower` and `append_replicated` for batches that already have their offsets.

The first branch of `append` handles the ordinary batch: the next one of its producer, valid, with
nothing to change and no record to decode. That branch does in one step what `validator`,
`producer_state` and the rest of this module do for any batch (docs/adr/0017, 0022). Its conditions
come in groups that are left early, as Python 3.11 specializes no comparison whose jump is longer
than 255 code units, and an unspecialized one takes several times as many machine instructions.
Every other batch is checked, possibly by a worker, then written, which may have to wait for a new
segment: the result says so, and `append_checked` continues from there.

`log_end_offset` is updated last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kbroker.log.append_cost import LoopBudget
from kbroker.log.append_request import AppendRequest
from kbroker.log.producer.markers import Marker, markers_of
from kbroker.log.producer.producer_state import (
    MAX_SEQUENCE,
    REMEMBERED_BATCHES,
    ProducerState,
    RememberedBatch,
)
from kbroker.log.producer.replay import check_producers, end_transaction, replay_producer
from kbroker.log.results import CHECK_DUE, Appended, CheckDue, Duplicate, FlushDue, Refused
from kbroker.log.state.log_state import LogState
from kbroker.log.state.roll import RollDue
from kbroker.log.state.rolling import begin_roll, roll_now
from kbroker.log.storage.faults import make_lasting
from kbroker.log.storage.files import LogDirectoryError
from kbroker.log.storage.index_entries import MAX_RELATIVE_OFFSET
from kbroker.log.storage.segment import Segment
from kbroker.log.validator import (
    AppendOrigin,
    ValidatedBatches,
    validate_batches,
    validate_replicated,
)
from kbroker.protocol.batches.batch_header import (
    APPEND_FIELDS,
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CODEC_MASK,
    FLAGS_POSITION,
    HEADER,
    LEADER_FIELDS,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
)
from kbroker.protocol.batches.checksum import crc32c
from kbroker.protocol.batches.records import MIN_RECORD_BYTES, most_records
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.settings.views.log_config import LogConfig

Postponed = CheckDue | RollDue
"""Why an append is postponed."""

_ATTRIBUTES: Final = frozenset(range(5))
_TRANSACTIONAL: Final = frozenset(codec | TRANSACTIONAL_FLAG for codec in _ATTRIBUTES)
_SEQUENCE_LIMIT: Final = MAX_SEQUENCE + 1
_COORDINATOR: Final = AppendOrigin.COORDINATOR
_new: Final = object.__new__


class AppendableLog(LogState):
    """The append operations of a `PartitionLog`."""

    __slots__ = ()

    def append(
        self,
        batches: bytearray | memoryview,
        leader_epoch: int,
        request: AppendRequest,
        budget: LoopBudget | None = None,
    ) -> Appended | FlushDue | Refused | Postponed:
        """Assign the next offsets to whole batches, in place, and append them.

        budget: what the checks may cost the loop. With a budget, a client's batches are postponed
        if they exceed it or need a new segment; without one, the call blocks for both. Raises
        LogDirectoryError for a disk fault.
        """
        config, size = self.config, len(batches)
        if size < BATCH_OVERHEAD or (
            (size > config.largest_plain_batch or not request.is_plain)
            and (size > config.largest_coordinator_batch or request.origin is not _COORDINATOR
                 or batches[FLAGS_POSITION] & CODEC_MASK)
        ):  # fmt: skip
            return self._append_any(batches, leader_epoch, request, budget)
        (
            base_offset, length, magic, crc, attributes, delta, latest,
            producer_id, epoch, sequence, count,
        ) = APPEND_FIELDS.unpack_from(batches)  # fmt: skip
        producers = self.producers
        if (
            base_offset or length + LENGTH_OVERHEAD != size or magic != MAGIC
            or (attributes not in _ATTRIBUTES
                and (attributes not in _TRANSACTIONAL or request.reverify is None))
            or count != delta + 1 or leader_epoch != self.leader_epochs.latest_epoch
            or (count * MIN_RECORD_BYTES > size - BATCH_OVERHEAD
                and count > most_records(attributes, size))
            or latest - request.now_ms > config.message_timestamp_after_max_ms
            or (producer_id >= 0 and (
                (state := producers.active_producers.get(producer_id)) is None
                or epoch != state.producer_epoch or epoch < 0
                or not (known := state.remembered) or known[-1][0] + 1 != sequence
                or sequence + delta >= _SEQUENCE_LIMIT
                or (state.transaction_first_offset is None) is (attributes >= TRANSACTIONAL_FLAG)
            ))
        ):  # fmt: skip
            return self._append_any(batches, leader_epoch, request, budget)
        segment, offset = self.segments.active, self.log_end_offset
        last_offset = offset + delta
        if (
            segment.index_room <= 0 or latest > segment.latest_timestamp
            or last_offset > segment.largest_offset or self.failure is not None
            or segment.size > config.segment_bytes - size
            or (view := batches if type(batches) is memoryview else memoryview(batches)).readonly
            or crc32c(view[ATTRIBUTES_POSITION:]) != crc
        ):  # fmt: skip
            return self._append_any(batches, leader_epoch, request, budget)
        LEADER_FIELDS.pack_into(batches, 0, offset, length, leader_epoch)
        try:
            segment.append_sized(view, ((size, last_offset, latest),))
        except LogDirectoryError as error:
            self._fail(error)
            raise
        if producer_id >= 0:
            if len(known) == REMEMBERED_BATCHES:
                del known[0]
            known.append((sequence + delta, last_offset, delta, latest))
            state.last_timestamp = latest  # type: ignore[union-attr]  # checked above
        self.log_end_offset = producers.map_end_offset = last_offset + 1
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = request.now_ms
        appended = _new(Appended)
        appended.base_offset, appended.last_offset = offset, last_offset
        appended.log_start_offset, appended.log_append_time_ms = self.log_start_offset, -1
        return appended

    def _append_any(
        self,
        batches: bytearray | memoryview,
        leader_epoch: int,
        request: AppendRequest,
        budget: LoopBudget | None,
    ) -> Appended | FlushDue | Refused | Postponed:
        """`append` for the batches that its first branch does not handle."""
        if request.lacks_transaction(batches):
            return Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if self.failure is not None:
            raise self.failure
        config = self.config
        may_wait = budget is not None and request.origin is AppendOrigin.CLIENT
        if may_wait and not budget.admits(  # type: ignore[union-attr]  # may_wait: it is set
            batches, config, request.produce_version, request.now_ms
        ):
            return CHECK_DUE
        checked = check_batches(
            batches, config, request, next_offset=self.log_end_offset, leader_epoch=leader_epoch
        )
        if isinstance(checked, Refused):
            return checked
        return self._append_checked(checked, request, may_wait)

    def append_checked(
        self,
        checked: ValidatedBatches,
        leader_epoch: int,
        request: AppendRequest,
        *,
        may_wait: bool,
    ) -> Appended | FlushDue | Refused | RollDue:
        """Continue a postponed append with batches that were already checked; they get the offsets
        that are next now. may_wait: return RollDue if they need a new segment; otherwise the call
        blocks for its files. Raises LogDirectoryError.
        """
        if self.failure is not None:
            raise self.failure
        checked.place(self.log_end_offset, leader_epoch)
        return self._append_checked(checked, request, may_wait)

    def _append_checked(
        self, checked: ValidatedBatches, request: AppendRequest, may_wait: bool
    ) -> Appended | FlushDue | Refused | RollDue:
        """Check producer epochs and sequences of batches that have their offsets, then write
        them.
        """
        try:
            markers = markers_of(checked.batches, checked.headers)
            duplicate = check_producers(
                self.producers,
                checked.headers,
                markers,
                origin=request.origin,
                transaction_version=request.transaction_version,
            )
            if duplicate is not None:
                return self._flushed(
                    Duplicate(
                        duplicate.base_offset,
                        duplicate.last_offset,
                        self.log_start_offset,
                        duplicate.timestamp,
                    )
                )
            if len(checked.batches) > self.config.segment_bytes:
                return Refused.because(self._too_large(checked))
            due = self._write(checked, markers, request.now_ms, may_wait=may_wait)
        except KafkaError as error:
            return Refused.because(error)
        if due is not None:
            return due
        return self._flushed(
            Appended(
                checked.base_offset,
                checked.last_offset,
                self.log_start_offset,
                checked.log_append_time_ms,
            )
        )

    def _flushed(self, appended: Appended) -> Appended | FlushDue:
        """The result for batches that were written to the log: FlushDue if flush.messages is
        reached.
        """
        if self.log_end_offset - self.recovery_point >= self.config.flush_messages:
            return FlushDue(appended)
        return appended

    def append_next_replicated(
        self, batches: memoryview, leader_epoch: int, now_ms: int, *, max_batches: int
    ) -> int:
        """Append a leader's batches as long as each is what nearly every batch is: whole and sound,
        the next one, of the log's newest epoch and a known producer epoch, with no new transaction
        and no new segment. Does in one step what `validate_replicated` and `append_replicated` do.

        leader_epoch: the newest that a batch may have. Returns how many bytes were appended, of
        max_batches at most; the rest is for those two. Raises LogDirectoryError.
        """
        segment = self.segments.active
        epoch, size = self.leader_epochs.latest_epoch, len(batches)
        if epoch is None or epoch > leader_epoch or self.failure is not None:
            return 0
        if segment.size > self.config.segment_bytes - size:
            return 0
        active_producers = self.producers.active_producers
        latest_timestamp, largest_offset = segment.latest_timestamp, segment.largest_offset
        offset = self.log_end_offset
        sized: list[tuple[int, int, int]] = []
        remembered: list[tuple[ProducerState, RememberedBatch]] = []
        end = 0
        for _ in range(min(max_batches, segment.index_room)):
            begin = end
            if size - begin < BATCH_OVERHEAD:
                break
            (
                base_offset, length, batch_epoch, magic, crc, attributes, delta, _, latest,
                producer_id, producer_epoch, sequence, count,
            ) = HEADER.unpack_from(batches, begin)  # fmt: skip
            following = begin + length + LENGTH_OVERHEAD
            last_offset = base_offset + delta
            if not (
                base_offset == offset and batch_epoch == epoch and magic == MAGIC
                and begin + BATCH_OVERHEAD <= following <= size
                and (attributes in _ATTRIBUTES or attributes in _TRANSACTIONAL)
                and count > 0 and delta >= 0
                and latest <= latest_timestamp and last_offset <= largest_offset
                and (producer_id < 0 or (
                    (state := active_producers.get(producer_id)) is not None
                    and producer_epoch == state.producer_epoch
                    and 0 <= sequence < _SEQUENCE_LIMIT - delta
                    and (attributes < TRANSACTIONAL_FLAG
                         or state.transaction_first_offset is not None)
                ))
                and crc32c(batches[begin + ATTRIBUTES_POSITION : following]) == crc
            ):  # fmt: skip
                break
            if producer_id >= 0:
                batch = (sequence + delta, last_offset, delta, latest)
                remembered.append((state, batch))  # type: ignore[arg-type]  # checked above
            sized.append((following - begin, last_offset, latest))
            end, offset = following, last_offset + 1
        if not end:
            return 0
        try:
            segment.append_sized(batches[:end], sized)
        except LogDirectoryError as error:
            self._fail(error)
            raise
        for state, batch in remembered:
            state.add_batch(batch)
            state.last_timestamp = batch[3]
        self.log_end_offset = self.producers.map_end_offset = offset
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms
        return end

    def append_as_follower(
        self, batches: bytes | bytearray | memoryview, *, now_ms: int
    ) -> Appended:
        """Append batches as the leader sent them, with its offsets and epochs; the quorum also
        appends its own batches so. Blocks for a new segment.

        Raises KafkaError(CORRUPT_MESSAGE) for damaged bytes, KafkaError(OFFSET_OUT_OF_RANGE) for
        offsets below the log end offset, KafkaError(RECORD_LIST_TOO_LARGE), LogDirectoryError.
        """
        if self.failure is not None:
            raise self.failure
        checked = validate_replicated(batches, next_offset=self.log_end_offset)
        self.append_replicated(checked, now_ms=now_ms, may_wait=False)
        return Appended(checked.base_offset, checked.last_offset, self.log_start_offset)

    def append_replicated(
        self, checked: ValidatedBatches, *, now_ms: int, may_wait: bool
    ) -> RollDue | None:
        """Append what `validate_replicated` accepted for the current log end offset. may_wait:
        return RollDue if a new segment is needed, and this method is to be called again after the
        roll; otherwise the call blocks for the files of that segment.

        Raises KafkaError(RECORD_LIST_TOO_LARGE), LogDirectoryError.
        """
        if self.failure is not None:
            raise self.failure
        markers = markers_of(checked.batches, checked.headers)
        if len(checked.batches) > self.config.segment_bytes:
            raise self._too_large(checked)
        return self._write(checked, markers, now_ms, may_wait=may_wait)

    def _too_large(self, checked: ValidatedBatches) -> KafkaError:
        return KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{len(checked.batches)} bytes are more than a segment of {self.topic_partition} holds "
            f"({self.config.segment_bytes})",
        )

    def _write(
        self,
        checked: ValidatedBatches,
        markers: Sequence[Marker | None],
        now_ms: int,
        *,
        may_wait: bool,
    ) -> RollDue | None:
        """Write batches into the active segment, then update epochs, producers and log_end_offset;
        of these updates only that of the transaction index can fail. markers: one per batch.

        Returns RollDue, with nothing written, if they need a new segment and may wait for it.
        Raises LogDirectoryError, KafkaError for a damaged segment.
        """
        headers = checked.headers
        segment = self.segments.active
        size, latest = len(checked.batches), checked.max_timestamp
        try:
            if segment.should_roll(size, checked.last_offset, latest, self.config, now_ms):
                fits = checked.last_offset - self.log_end_offset <= MAX_RELATIVE_OFFSET
                if may_wait and segment.size and fits:
                    return RollDue(begin_roll(self, now_ms, self.log_end_offset), checked)
                segment = self._roll_for(checked, now_ms, fits=fits)
            epochs = self.leader_epochs
            for header in headers:
                epoch = header.partition_leader_epoch
                if epoch >= 0 and epoch != epochs.latest_epoch:
                    epochs.assign(epoch, header.base_offset)
            segment.append(checked.batches, headers)
            if segment.index_room <= 0:
                segment.learn_limits(self.config)
            self._replay(headers, markers, segment)
        except LogDirectoryError as error:
            self._fail(error)
            raise
        self.log_end_offset = self.producers.map_end_offset = checked.last_offset + 1
        if self.first_unflushed_ms is None:
            self.first_unflushed_ms = now_ms
        return None

    def _roll_for(self, checked: ValidatedBatches, now_ms: int, *, fits: bool) -> Segment:
        """Make the new segment for these batches in this thread. It begins at the log end: after
        records that compaction removed at the leader the batches may begin later, as in Kafka the
        segment does, but until they are appended the log would end before its active segment.

        fits: the batches fit into index entries from the log end on. If not, the log ends where
        they begin from now on.
        """
        if fits:
            return roll_now(self, now_ms, self.log_end_offset)
        segment = roll_now(self, now_ms, checked.base_offset)
        self.log_end_offset = self.producers.map_end_offset = segment.base_offset
        return segment

    def _replay(
        self,
        headers: Sequence[BatchHeader],
        markers: Sequence[Marker | None],
        segment: Segment,
    ) -> None:
        """Replay batches that were written into the producer state. Raises LogDirectoryError, which
        is no shortage.
        """
        for number, header in enumerate(headers):
            if header.producer_id >= 0:
                completed = replay_producer(self.producers, header, markers[number])
                if completed is not None:
                    try:
                        end_transaction(self.producers, segment, completed)
                    except LogDirectoryError as error:
                        make_lasting(error)  # the marker is in the segment
                        raise

    def _fail(self, error: LogDirectoryError) -> None:
        """Record the fault: nothing is appended after it. Except where a file could not be opened
        before anything was written.
        """
        if not error.is_shortage:
            self.failure = error


def check_batches(
    batches: bytearray | memoryview,
    config: LogConfig,
    request: AppendRequest,
    *,
    next_offset: int = 0,
    leader_epoch: int = 0,
) -> ValidatedBatches | Refused:
    """`validate_batches` for an append, callable in any thread. A worker does not know the next
    offset, so `append_checked` assigns the offsets.
    """
    try:
        return validate_batches(
            batches,
            next_offset=next_offset,
            leader_epoch=leader_epoch,
            now_ms=request.now_ms,
            config=config,
            origin=request.origin,
            compacted=config.compact,
            produce_version=request.produce_version,
            validate_records=config.validate_records,
        )
    except KafkaError as error:
        return Refused.because(error)
