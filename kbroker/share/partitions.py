"""The share partitions that this broker leads: opening, changes and their writes (KIP-932).

The shell of `partition`, which decides changes of a share partition. Changes are written through
the persister, one write at a time; changes made during a write are part of the next one. A change
is final once it is written. One timer per share partition expires the locks of records. Reading is
in `reader`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kbroker.log_lines import shown
from kbroker.model import TopicPartition
from kbroker.ports import Deferred, Timers, as_kafka_error, at_once, gather_by_key
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_partition_state import (
    BATCHES_PER_STEP,
    COORDINATOR_IN_TRANSITION,
    UNINITIALIZED,
    SharePlace,
    StateFound,
    StateWrite,
)
from kbroker.replication.manager import ReplicaManager
from kbroker.replication.partition import Partition
from kbroker.replication.reads.offsets import EARLIEST, LATEST, ListedOffset
from kbroker.replication.time_slices import SlicedSteps
from kbroker.settings.durations import duration_ms
from kbroker.settings.views.share_groups import ShareGroupConfig
from kbroker.share.acknowledgement import Acknowledgement, check_acknowledgements
from kbroker.share.acquisition import Acquired, AcquireLimits
from kbroker.share.open_partitions import OpenSharePartition, OpenSharePartitions
from kbroker.share.partition import SharePartition
from kbroker.share.persister import SharePersister
from kbroker.share.runs import Change

logger = logging.getLogger(__name__)

_MOVED: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})
"""Errors after which the state must be read again: it has changed, or belongs to another broker."""
_BY_DURATION: Final = "by_duration:"


class AcknowledgeOutcome(NamedTuple):
    """The result of an acknowledgement: NONE, or an error with its message."""

    error: ErrorCode
    message: str = ""


class SharePartitions:
    """The share partitions of all groups on this broker. config_of: a group's settings."""

    def __init__(
        self,
        replicas: ReplicaManager,
        persister: SharePersister,
        timers: Timers,
        config_of: Callable[[str], ShareGroupConfig],
    ) -> None:
        self._replicas = replicas
        self._persister = persister
        self._timers = timers
        self._config_of = config_of
        self._open = OpenSharePartitions()
        self._opening: dict[SharePlace, Deferred[OpenSharePartition | ErrorCode]] = {}
        self._outdated: set[SharePlace] = set()
        """Those of `_opening` whose state may have changed since it was read."""
        self.is_read: Callable[[str], bool] = lambda group_id: True
        """Whether a session of that group exists on this broker."""
        replicas.on_leadership(self._on_leadership)

    # -- opening -----------------------------------------------------------------------------

    def find(self, key: SharePlace) -> OpenSharePartition | None:
        """The share partition if it is open and its leadership has not changed."""
        found = self._open.get(key)
        if found is not None and found.replica.leader_epoch != found.leader_epoch:
            self._close(found)
            return None
        return found

    def open(self, key: SharePlace) -> Deferred[OpenSharePartition | ErrorCode]:
        """The share partition, opened by reading its state if necessary, or the error.
        NOT_LEADER_OR_FOLLOWER and COORDINATOR_NOT_AVAILABLE are retriable.
        """
        found = self.find(key)
        if found is not None:
            return Deferred.of(found)
        opening = self._opening.get(key)
        if opening is not None:
            return opening
        replica = self._replicas.find(*key.place)
        error = replica if isinstance(replica, ErrorCode) else replica.check_leader()
        if error or isinstance(replica, ErrorCode):
            return Deferred.of(error)
        epoch = replica.leader_epoch

        def begin(state: StateFound) -> Deferred[OpenSharePartition | ErrorCode]:
            if state.error is ErrorCode.NONE and state.start_offset == UNINITIALIZED:
                first = self._first_offset(key.group_id, replica.topic_partition)
            else:
                first = Deferred.of(ListedOffset(offset=state.start_offset))
            return first.then(lambda first: self._opened(key, replica, epoch, state, first))

        opening = self._persister.read(key, epoch).then(begin)
        opening = opening.recover(partial(self._not_opened, key))
        if not opening.done:
            self._opening[key] = opening
        return opening

    def _end_opening(self, key: SharePlace) -> bool:
        """Whether the state that was read is still to be used."""
        self._opening.pop(key, None)
        is_current = key not in self._outdated
        self._outdated.discard(key)
        return is_current

    def _not_opened(self, key: SharePlace, error: KafkaError) -> OpenSharePartition | ErrorCode:
        self._end_opening(key)
        return _told(error.code)

    def _opened(
        self,
        key: SharePlace,
        replica: Partition,
        epoch: int,
        state: StateFound,
        first: ListedOffset,
    ) -> OpenSharePartition | ErrorCode:
        is_current = self._end_opening(key)
        if state.error is not ErrorCode.NONE:
            return _told(state.error)
        if not is_current or replica.leader_epoch != epoch or replica.check_leader():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if first.error is not ErrorCode.NONE:
            return first.error
        core = SharePartition(first.offset, state.batches)
        core.log_start_moved(replica.log.log_start_offset)
        found = OpenSharePartition(key, replica, core, state.state_epoch)
        if state.start_offset == UNINITIALIZED:
            # Written at once: a group that starts at the latest offset would skip records if
            # this broker failed.
            self._open.add(found)
            self._change(found, Change(), must_write=True)
        elif self.is_read(key.group_id):
            self._open.add(found)
        # else the last session has ended while the state was read: nothing would close it. An
        # acknowledgement that waits finds no acquired record in it, so it changes nothing.
        return found

    def _first_offset(self, group_id: str, partition: TopicPartition) -> Deferred[ListedOffset]:
        """The start offset of a group without a state, from share.auto.offset.reset."""
        reset = self._config_of(group_id).auto_offset_reset
        timestamp = {"earliest": EARLIEST, "latest": LATEST}.get(reset)
        if timestamp is None:
            # not below 0: negative timestamps have a special meaning, -1 is the latest offset
            age_ms = duration_ms(reset.removeprefix(_BY_DURATION))
            timestamp = max(self._timers.now_ms() - age_ms, 0)

        def or_latest(listed: ListedOffset) -> Deferred[ListedOffset]:
            if listed.error is ErrorCode.NONE and listed.offset < 0:
                return self._replicas.offset_of(partition, LATEST)
            return Deferred.of(listed)

        return self._replicas.offset_of(partition, timestamp).then(or_latest)

    def _on_leadership(self, partition: TopicPartition, epoch: int | None) -> None:
        for found in self._open.of_partition(partition):
            if found.leader_epoch != epoch:
                self._close(found)

    def _close(self, found: OpenSharePartition) -> None:
        """Close the share partition: its state is read again at the next use."""
        self._open.remove(found)
        if found.timer is not None:
            found.timer.cancel()
            found.timer = None
        changes, found.changes = found.changes, []
        for _, result in changes:
            result.resolve(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        found.wake()

    def close_group(self, group_id: str) -> None:
        """The group has no session on this broker any more: close its share partitions at rest. A
        state that is being read is not used: from now on other brokers may reset it.
        """
        self._outdated.update(key for key in self._opening if key.group_id == group_id)
        for found in self._open.of_group(group_id):
            if found.is_at_rest:
                self._close(found)

    def forget(self, key: SharePlace) -> None:
        """Close the share partition, because its state was initialized again or deleted."""
        if key in self._opening:
            self._outdated.add(key)
        found = self._open.get(key)
        if found is not None:
            self._close(found)

    def close(self) -> None:
        """Close all share partitions, when the broker stops."""
        for found in self._open.values():
            self._close(found)

    # -- records -----------------------------------------------------------------------------

    def acquire(
        self,
        found: OpenSharePartition,
        member_id: str,
        batches: Iterable[tuple[int, int]],
        limits: AcquireLimits,
    ) -> list[Acquired]:
        """Acquire records for a member, and start the timer of their locks."""
        now_ms = self._timers.monotonic_ms()
        acquired = found.core.acquire(member_id, batches, limits, now_ms)
        if acquired and found.timer is None:
            self._arm(found, limits.lock_ms)
        return acquired

    def acknowledge(
        self, key: SharePlace, member_id: str, items: Sequence[Acknowledgement], *, may_renew: bool
    ) -> Generator[None, None, Deferred[AcknowledgeOutcome]]:
        """Apply acknowledgements of a member, in steps: all of them or none. Resolves when the
        change is written.
        """
        error = yield from check_acknowledgements(items, may_renew=may_renew)
        if error is not ErrorCode.NONE:
            return Deferred.of(AcknowledgeOutcome(error, "The acknowledgements are malformed."))
        opening = self.open(key)
        if opening.done:
            return (yield from self._acknowledge(opening.value, member_id, items))
        # in a state that was just read no record is acquired: there is little to do
        return opening.then(lambda found: at_once(self._acknowledge(found, member_id, items)))

    def _acknowledge(
        self,
        found: OpenSharePartition | ErrorCode,
        member_id: str,
        items: Sequence[Acknowledgement],
    ) -> Generator[None, None, Deferred[AcknowledgeOutcome]]:
        if isinstance(found, ErrorCode):
            return Deferred.of(AcknowledgeOutcome(found))
        config = self._config_of(found.key.group_id)
        was_open = self._open.get(found.key) is found
        found.acknowledging_count += 1
        try:
            change = yield from found.core.acknowledge_in_steps(
                member_id,
                items,
                delivery_limit=config.group_share_delivery_count_limit,
                renewed_until_ms=self._timers.monotonic_ms()
                + config.group_share_record_lock_duration_ms,
            )
            if was_open and self._open.get(found.key) is not found:  # closed during a pause
                return Deferred.of(AcknowledgeOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return self._change(found, change).then(AcknowledgeOutcome)
        except KafkaError as error:
            return Deferred.of(AcknowledgeOutcome(error.code, error.message))
        finally:
            found.acknowledging_count -= 1
            self._settle(found)

    def release(self, group_id: str, member_id: str) -> Deferred[Mapping[SharePlace, ErrorCode]]:
        """Release all records that a departed member has acquired on this broker; resolves when the
        changes are written: the result of each share partition that had such records.

        All are released at once, since the member may come back and acquire others. They are
        written in slices of the loop, because a coordinator on this broker appends at once.
        """
        limit = self._config_of(group_id).group_share_delivery_count_limit
        waiting: dict[SharePlace, Deferred[ErrorCode]] = {}
        released: list[OpenSharePartition] = []
        for found in self._open.of_group(group_id):
            change = found.core.release(member_id, delivery_limit=limit)
            if change.batches:
                waiting[found.key] = _add_change(found, change)
                released.append(found)

        def written(failure: Exception | None) -> None:
            if failure is not None:  # the broker stops
                for found in released:
                    self._close(found)

        self._replicas.fair_slices.begin(map(self._write, released), written)
        return gather_by_key(waiting)

    def _change(
        self, found: OpenSharePartition, change: Change, *, must_write: bool = False
    ) -> Deferred[ErrorCode]:
        """Write a change, together with earlier ones that wait."""
        if not change.batches and not must_write:
            return Deferred.of(ErrorCode.NONE)
        result = _add_change(found, change)
        self._write(found)
        return result

    def _write(self, found: OpenSharePartition) -> None:
        if found.is_writing or not found.changes:
            return
        changes, found.changes = found.changes, []
        found.is_writing = True
        core = found.core
        write = StateWrite(
            found.state_epoch,
            found.leader_epoch,
            core.start_offset,
            core.delivery_complete_count,
            [batch for change, _ in changes for batch in change.batches],
        )

        def written(error: ErrorCode) -> None:
            found.is_writing = False
            for change, _ in changes:
                if error is ErrorCode.NONE:
                    core.commit(change)
                else:
                    core.rollback(change)
            if error is not ErrorCode.NONE:
                self._write_failed(found, error)
            for _, result in changes:
                result.resolve(_told(error))
            if self._open.get(found.key) is found:
                self._write(found)
                if error is not ErrorCode.NONE or self._has_readable(found):
                    found.wake()
                self._settle(found)

        persisted = self._persist(found.key, write)
        persisted.on_done(written, lambda error: written(error.code))

    def _persist(self, key: SharePlace, write: StateWrite) -> Deferred[ErrorCode]:
        """Write a change of a state: one of very many batches in several writes, one after the
        other, up to the first error. Each changes the state of its own offsets.
        """
        batches = write.batches
        if len(batches) <= BATCHES_PER_STEP:
            return self._persister.write(key, write)
        error = ErrorCode.NONE
        result: Deferred[ErrorCode] = Deferred()

        def steps() -> SlicedSteps:
            nonlocal error
            for start in range(0, len(batches), BATCHES_PER_STEP):
                part = batches[start : start + BATCHES_PER_STEP]
                written = self._persister.write(key, write._replace(batches=part))
                yield written
                error = written.value
                if error is not ErrorCode.NONE:
                    return

        def done(failure: Exception | None) -> None:
            if failure is None:
                result.resolve(error)
            else:
                result.fail(as_kafka_error(failure))

        self._replicas.fair_slices.begin(steps(), done)
        return result

    def _settle(self, found: OpenSharePartition) -> None:
        """After a change: start the timer of the next lock, and close the share partition if it is
        not used any more.
        """
        if self._open.get(found.key) is not found:
            return
        if found.timer is None:
            self._arm_next(found)
        if not self.is_read(found.key.group_id) and found.is_at_rest:
            self._close(found)

    def _has_readable(self, found: OpenSharePartition) -> bool:
        """Whether fetches wait and one of them could read now. Mostly a write leaves nothing to
        read: its records are acknowledged.
        """
        if not found.waiting:
            return False
        config = self._config_of(found.key.group_id)
        max_locks = config.group_share_partition_max_record_locks
        return found.readable_offset(max_locks) is not None

    def _write_failed(self, found: OpenSharePartition, error: ErrorCode) -> None:
        logger.warning(
            "%s for share group %s: cannot write its state: %s",
            found.replica.topic_partition,
            shown(found.key.group_id),
            error.name,
        )
        if error not in COORDINATOR_IN_TRANSITION:
            self._close(found)

    # -- locks -------------------------------------------------------------------------------

    def _arm(self, found: OpenSharePartition, delay_ms: int) -> None:
        found.timer = self._timers.call_later(delay_ms, lambda: self._on_timer(found))

    def _arm_next(self, found: OpenSharePartition) -> None:
        due_ms = found.core.next_deadline_ms()
        if due_ms is not None:
            self._arm(found, max(due_ms - self._timers.monotonic_ms(), 1))

    def _on_timer(self, found: OpenSharePartition) -> None:
        found.timer = None
        if self._open.get(found.key) is not found:
            return
        limit = self._config_of(found.key.group_id).group_share_delivery_count_limit
        change = found.core.expire(self._timers.monotonic_ms(), delivery_limit=limit)
        self._change(found, change)
        if found.timer is None:
            self._arm_next(found)


def _add_change(found: OpenSharePartition, change: Change) -> Deferred[ErrorCode]:
    """The result of a change, which the next write contains."""
    result: Deferred[ErrorCode] = Deferred()
    found.changes.append((change, result))
    return result


def _told(error: ErrorCode) -> ErrorCode:
    """The error for a client when the share coordinator has returned this error."""
    if error in _MOVED:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if error in COORDINATOR_IN_TRANSITION:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return error
    return ErrorCode.UNKNOWN_SERVER_ERROR
