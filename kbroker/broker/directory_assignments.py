"""Reports this broker's log directories to the controller: in which one each replica is
(AssignReplicasToDirs, KIP-858), and which disks failed.

Both go through the controller channel, and are sent again while the controller cannot be reached
(Kafka: AssignmentsManager, and BrokerLifecycleManager for failed directories). A failed metadata
directory, the failure of all, and one that the controller does not acknowledge in time stop the
broker: its partitions would keep a leader that cannot serve them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from kbroker.broker.controller_channel import BrokerChannel
from kbroker.controller.partitions.directories import Assignment
from kbroker.log.manager import LogManager
from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred, TimerHandle, Timers, broker_stopping
from kbroker.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

FIRST_RETRY_MS: Final = 100
LAST_RETRY_MS: Final = 10_000
"""The pause before a report is sent again doubles from the one to the other."""


class LogDirectoryReporter:
    """Sends the reports of one turn of the loop in one request.

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
        metadata_directory: Path,
        failure_timeout_ms: int,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._logs = logs
        self._controller = controller
        self._timers = timers
        self._broker_epoch = broker_epoch
        self._metadata_directory = metadata_directory
        self._failure_timeout_ms = failure_timeout_ms
        self._fail = fail
        self._assignments: dict[tuple[Uuid, int], Assignment] = {}
        self._waiting: list[Deferred[None]] = []
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
        again, and with BROKER_NOT_AVAILABLE once this is closed.
        """
        key = (topic_id, topic_partition.partition)
        self._assignments[key] = Assignment(topic_id, topic_partition.partition, directory_id)
        deferred: Deferred[None] = Deferred()
        deferred.on_done(_ignore, lambda _: None)  # `_retry` logs the failure for all
        if self._closed:
            deferred.fail(broker_stopping())
        else:
            self._waiting.append(deferred)
            self._plan(0)
        return deferred

    def close(self) -> None:
        """Send no further report; those that were not sent fail."""
        self._closed = True
        self._stop_timer()
        self._fail_all(self._take_waiting(), broker_stopping())

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
        assignments, self._assignments = list(self._assignments.values()), {}
        waiting = self._take_waiting()
        epoch = self._broker_epoch()
        if failed:
            answer = _outcome(partial(self._controller.directories_failed, epoch, failed))
            answer.on_done(
                partial(self._acknowledged, failed), partial(self._not_acknowledged, failed)
            )
        if assignments:
            answer = _outcome(partial(self._controller.assign_directories, epoch, assignments))
            answer.on_done(self._succeeded, partial(self._not_assigned, assignments))
            for deferred in waiting:
                answer.on_done(deferred.resolve, deferred.fail)

    def _succeeded(self, _: None) -> None:
        self._failures = 0

    def _acknowledged(self, failed: Sequence[Uuid], _: None) -> None:
        self._failures = 0
        self._unacknowledged.difference_update(failed)

    def _not_acknowledged(self, failed: Sequence[Uuid], error: KafkaError) -> None:
        self._failed.update(dict.fromkeys(failed))
        self._retry(error)

    def _not_assigned(self, assignments: Sequence[Assignment], error: KafkaError) -> None:
        """Newer assignments of the same replicas count; what is refused is not sent again."""
        if error.code.retriable:
            for each in assignments:
                self._assignments.setdefault((each.topic_id, each.partition), each)
        self._retry(error)

    def _retry(self, error: KafkaError) -> None:
        if self._closed:
            return
        logger.info("the controller refused a report of log directories: %s", error)
        if self._failed or self._assignments:
            self._plan(min(FIRST_RETRY_MS << min(self._failures, 16), LAST_RETRY_MS))
            self._failures += 1

    def _take_waiting(self) -> list[Deferred[None]]:
        waiting, self._waiting = self._waiting, []
        return waiting

    @staticmethod
    def _fail_all(waiting: list[Deferred[None]], error: KafkaError) -> None:
        for deferred in waiting:
            if not deferred.done:
                deferred.fail(error)


def _ignore(_: None) -> None:
    """The metadata image has the result."""


def _outcome(request: Callable[[], Deferred[None]]) -> Deferred[None]:
    """The outcome of a request that may be refused at once."""
    try:
        return request()
    except KafkaError as error:
        return Deferred.failed(error)
