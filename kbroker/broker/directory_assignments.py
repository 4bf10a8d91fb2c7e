"""Reports this broker's log directories to the controller: in which one each replica is
(AssignReplicasToDirs, KIP-858), and which disks failed.

Both go through the controller channel, and are sent again while the controller cannot be reached
(Kafka: AssignmentsManager, and BrokerLifecycleManager for failed directories). Each replica has its
own outcome; what is said of one that this broker no longer has is dropped. A failed metadata
directory, the failure of all, and one that the controller does not acknowledge in time stop the
broker: its partitions would keep a leader that cannot serve them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from kbroker.broker.controller_channel import BrokerChannel
from kbroker.controller.partitions.directories import Assignment
from kbroker.log.manager import LogManager
from kbroker.model import TopicIdPartition, TopicPartition, Uuid
from kbroker.ports import Deferred, TimerHandle, Timers, broker_stopping
from kbroker.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

FIRST_RETRY_MS: Final = 100
LAST_RETRY_MS: Final = 10_000
"""The pause before a report is sent again doubles from the one to the other."""

_GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""This broker has no such replica, says the controller. Should it get one, it reports that anew."""

T = TypeVar("T")


class _Report:
    """In which directory a replica is. waiting: who is to learn the outcome."""

    __slots__ = ("assignment", "key", "topic_partition", "waiting")

    def __init__(self, topic_partition: TopicPartition, assignment: Assignment) -> None:
        self.topic_partition = topic_partition
        self.assignment = assignment
        self.key: TopicIdPartition = (assignment.topic_id, assignment.partition)
        self.waiting: list[Deferred[None]] = []

    def take_waiting(self) -> list[Deferred[None]]:
        waiting, self.waiting = self.waiting, []
        return waiting


class LogDirectoryReporter:
    """Sends the reports of one turn of the loop in one request.

    is_assigned: whether this broker has a replica of a partition (and topic id) in the metadata.
    metadata_directory: of the metadata log. failure_timeout_ms: log.dir.failure.timeout.ms, in
    which the controller has to acknowledge a failed directory. fail: stops the broker.
    """

    def __init__(
        self,
        logs: LogManager,
        controller: BrokerChannel,
        timers: Timers,
        *,
        broker_epoch: Callable[[], int],
        is_assigned: Callable[[TopicPartition, Uuid], bool],
        metadata_directory: Path,
        failure_timeout_ms: int,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._logs = logs
        self._controller = controller
        self._timers = timers
        self._broker_epoch = broker_epoch
        self._is_assigned = is_assigned
        self._metadata_directory = metadata_directory
        self._failure_timeout_ms = failure_timeout_ms
        self._fail = fail
        self._unsent: dict[TopicIdPartition, _Report] = {}
        self._in_flight: dict[TopicIdPartition, _Report] = {}
        """The newest of each replica: an older one that fails must not be sent again after it."""
        self._failed: dict[Uuid, None] = {}
        self._unacknowledged: set[Uuid] = set()
        self._failures = 0
        self._timer: TimerHandle | None = None
        self._closed = False

    def assign(
        self, topic_partition: TopicPartition, topic_id: Uuid, directory_id: Uuid
    ) -> Deferred[None]:
        """Say that a replica is (or is about to be) in that directory; resolves once it is
        committed. Fails if the controller refuses it or cannot be reached, though it is then sent
        again, unless this broker is replaced (STALE_BROKER_EPOCH) or has no such replica
        (UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER). Fails with
        BROKER_NOT_AVAILABLE once this is closed.
        """
        deferred: Deferred[None] = Deferred()
        deferred.on_done(_ignore, lambda _: None)  # one line is logged for all
        if self._closed:
            deferred.fail(broker_stopping())
            return deferred
        assignment = Assignment(topic_id, topic_partition.partition, directory_id)
        report = _Report(topic_partition, assignment)
        older = self._unsent.get(report.key)
        if older is not None:
            report.waiting = older.take_waiting()
        report.waiting.append(deferred)
        self._unsent[report.key] = report
        self._plan(0)
        return deferred

    def close(self) -> None:
        """Send no further report; those that were not sent fail."""
        self._closed = True
        self._stop_timer()
        unsent, self._unsent = self._unsent, {}
        _settle((report, broker_stopping()) for report in unsent.values())

    def directory_failed(self, path: Path) -> None:
        """Report a failed disk; its partitions are offline already."""
        failure = self._logs.offline_directories.get(path)
        is_last = not self._logs.directories
        if failure is not None and (is_last or path == self._metadata_directory):
            self._fail(failure)
            return
        for directory in self._logs.all_directories:
            if directory.path == path and failure is not None:
                self._failed[directory.directory_id] = None
                self._unacknowledged.add(directory.directory_id)
                check = partial(self._check_acknowledged, directory.directory_id, failure)
                self._timers.call_later(self._failure_timeout_ms, check)
        self._plan(0)

    def _check_acknowledged(self, directory_id: Uuid, failure: BaseException) -> None:
        if directory_id in self._unacknowledged and not self._closed:
            logger.error("the controller has not acknowledged a failed log directory in time")
            self._fail(failure)

    def _plan(self, delay_ms: int) -> None:
        """Send in delay_ms; 0: at the end of this turn."""
        if self._timer is not None:
            if delay_ms:
                return
            self._timer.cancel()
        self._timer = self._timers.call_later(delay_ms, self._send)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._timer = None
        if self._closed:
            return
        failed, self._failed = list(self._failed), {}
        reports = self._take_reports()
        epoch = self._broker_epoch()
        if failed:
            answer = _outcome(partial(self._controller.directories_failed, epoch, failed))
            answer.on_done(
                partial(self._acknowledged, failed), partial(self._not_acknowledged, failed)
            )
        if reports:
            assignments = [report.assignment for report in reports]
            errors = _outcome(partial(self._controller.assign_directories, epoch, assignments))
            errors.on_done(partial(self._answered, reports), partial(self._not_assigned, reports))

    def _take_reports(self) -> list[_Report]:
        """The reports to send now; they are in flight then."""
        unsent, self._unsent = self._unsent, {}
        found: list[_Report] = []
        gone: list[_Report] = []
        for report in unsent.values():
            is_assigned = self._is_assigned(report.topic_partition, report.assignment.topic_id)
            (found if is_assigned else gone).append(report)
        self._in_flight.update((report.key, report) for report in found)
        if gone:
            logger.info("%d log directories are not reported: their replicas are gone", len(gone))
            error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the replica is gone")
            _settle((report, error) for report in gone)
        return found

    def _acknowledged(self, failed: Sequence[Uuid], _: None) -> None:
        self._failures = 0
        self._unacknowledged.difference_update(failed)

    def _not_acknowledged(self, failed: Sequence[Uuid], error: KafkaError) -> None:
        self._failed.update(dict.fromkeys(failed))
        self._retry(error)

    def _answered(self, reports: Sequence[_Report], codes: Sequence[ErrorCode]) -> None:
        errors: dict[ErrorCode, KafkaError] = {
            code: KafkaError(code) for code in codes if code is not ErrorCode.NONE
        }
        for code, error in errors.items():
            logger.info("%d log directories were not assigned: %s", codes.count(code), error)
        for report, code in zip(reports, codes, strict=True):
            self._landed(report, is_over=code is ErrorCode.NONE or code in _GONE)
        if errors.keys() <= _GONE:
            self._failures = 0
        else:
            self._send_later()
        _settle((report, errors.get(code)) for report, code in zip(reports, codes, strict=True))

    def _not_assigned(self, reports: Sequence[_Report], error: KafkaError) -> None:
        """The request was refused as a whole, or not answered. A broker that was replaced has
        nothing to say any more.
        """
        for report in reports:
            self._landed(report, is_over=error.code is ErrorCode.STALE_BROKER_EPOCH)
        self._retry(error)
        _settle((report, error) for report in reports)

    def _landed(self, report: _Report, *, is_over: bool) -> None:
        """A report that was sent has its outcome. Unless is_over it is sent again, or a newer one
        of the same replica in its place.
        """
        if self._in_flight.get(report.key) is report:
            del self._in_flight[report.key]
            if not is_over:
                self._unsent.setdefault(report.key, report)

    def _retry(self, error: KafkaError) -> None:
        if self._closed:
            return
        logger.info("the controller refused a report of log directories: %s", error)
        self._send_later()

    def _send_later(self) -> None:
        """After a pause, unless there is nothing to send."""
        if not self._closed and (self._failed or self._unsent):
            self._plan(min(FIRST_RETRY_MS << min(self._failures, 16), LAST_RETRY_MS))
            self._failures += 1


def _ignore(_: None) -> None:
    """The metadata image has the result."""


def _settle(outcomes: Iterable[tuple[_Report, KafkaError | None]]) -> None:
    """Tell those who wait. They may report the same replicas again within the call."""
    told = [(deferred, error) for report, error in outcomes for deferred in report.take_waiting()]
    for deferred, error in told:
        if error is None:
            deferred.resolve(None)
        else:
            deferred.fail(error)


def _outcome(request: Callable[[], Deferred[T]]) -> Deferred[T]:
    """The outcome of a request that may be refused at once."""
    try:
        return request()
    except KafkaError as error:
        return Deferred.failed(error)
