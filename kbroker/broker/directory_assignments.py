"""Reports this broker's log directories to the controller: in which one each replica is
(AssignReplicasToDirs, KIP-858), and which disks failed.

Both go through the controller channel. A failed metadata directory, or the failure of all, stops
the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from kbroker.broker.controller_channel import ControllerChannel
from kbroker.controller.directories import Assignment
from kbroker.log.manager import LogManager
from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred, Timers, broker_stopping
from kbroker.protocol.errors import KafkaError

logger = logging.getLogger(__name__)


class LogDirectoryReporter:
    """Sends the reports of one turn of the loop in one request.

    metadata_directory: of the metadata log. fail: stops the broker.
    """

    def __init__(
        self,
        logs: LogManager,
        controller: ControllerChannel,
        timers: Timers,
        *,
        broker_epoch: Callable[[], int],
        metadata_directory: Path,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._logs = logs
        self._controller = controller
        self._timers = timers
        self._broker_epoch = broker_epoch
        self._metadata_directory = metadata_directory
        self._fail = fail
        self._assignments: dict[tuple[Uuid, int], Assignment] = {}
        self._waiting: list[Deferred[None]] = []
        self._failed: list[Uuid] = []
        self._planned = False
        self._closed = False

    def assign(
        self, topic_partition: TopicPartition, topic_id: Uuid, directory_id: Uuid
    ) -> Deferred[None]:
        """Say that a replica is (or is about to be) in that directory; resolves once it is
        committed. Fails if the controller refuses or loses leadership, and with
        BROKER_NOT_AVAILABLE once this is closed.
        """
        key = (topic_id, topic_partition.partition)
        self._assignments[key] = Assignment(topic_id, topic_partition.partition, directory_id)
        deferred: Deferred[None] = Deferred()
        deferred.on_done(_ignore, lambda _: None)  # `_report` logs the failure for all callers
        if self._closed:
            deferred.fail(broker_stopping())
        else:
            self._waiting.append(deferred)
            self._plan()
        return deferred

    def close(self) -> None:
        """Send no further report; those that were not sent fail."""
        self._closed = True
        self._fail_all(self._take_waiting(), broker_stopping())

    def directory_failed(self, path: Path) -> None:
        """Report a failed disk; its partitions are offline already."""
        failure = self._logs.offline_directories.get(path)
        is_last = not self._logs.directories
        if failure is not None and (is_last or path == self._metadata_directory):
            self._fail(failure)
        else:
            self._failed += [
                directory.directory_id
                for directory in self._logs.all_directories
                if directory.path == path
            ]
            self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._timers.call_later(0, self._send)

    def _send(self) -> None:
        self._planned = False
        if self._closed:
            return
        failed, self._failed = self._failed, []
        assignments, self._assignments = list(self._assignments.values()), {}
        waiting = self._take_waiting()
        epoch = self._broker_epoch()
        try:
            if failed:
                self._controller.directories_failed(epoch, failed).on_done(_ignore, _report)
            if assignments:
                committed = self._controller.assign_directories(epoch, assignments)
                committed.on_done(_ignore, _report)
                for deferred in waiting:
                    committed.on_done(deferred.resolve, deferred.fail)
        except KafkaError as error:
            _report(error)
            self._fail_all(waiting, error)

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


def _report(error: KafkaError) -> None:
    logger.info("the controller refused a report of log directories: %s", error)
