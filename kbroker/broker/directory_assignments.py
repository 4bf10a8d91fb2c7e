"""What the controller is told of this broker's log directories: where replicas are (AssignReplicas
ToDirs), and which disks failed.

On a node that is its own controller both go to it directly. A failed metadata directory, or the
failure of all, stops the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from kbroker.broker.controller_runtime import ControllerRuntime
from kbroker.controller.directories import Assignment
from kbroker.log.manager import LogManager
from kbroker.model import TopicPartition, Uuid
from kbroker.ports import Deferred, Timers
from kbroker.protocol.errors import KafkaError

logger = logging.getLogger(__name__)


class LogDirectoryReporter:
    """Collects what comes in one turn of the loop, since orders arrive inside a commit.

    metadata_directory: of the metadata log. fail: stops the broker.
    """

    def __init__(
        self,
        logs: LogManager,
        controller: ControllerRuntime,
        timers: Timers,
        *,
        metadata_directory: Path,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._logs = logs
        self._controller = controller
        self._timers = timers
        self._metadata_directory = metadata_directory
        self._fail = fail
        self._assignments: dict[tuple[Uuid, int], Assignment] = {}
        self._waiting: list[Deferred[None]] = []
        self._failed: list[Uuid] = []
        self._planned = False

    def assign(
        self, topic_partition: TopicPartition, topic_id: Uuid, directory_id: Uuid
    ) -> Deferred[None]:
        """Say that a replica is (or is about to be) in that directory; resolves once it is
        committed, never if the controller refuses.
        """
        key = (topic_id, topic_partition.partition)
        self._assignments[key] = Assignment(topic_id, topic_partition.partition, directory_id)
        deferred: Deferred[None] = Deferred()
        self._waiting.append(deferred)
        self._plan()
        return deferred

    def directory_failed(self, path: Path) -> None:
        """A disk failed; its partitions are offline already."""
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
        failed, self._failed = self._failed, []
        assignments, self._assignments = list(self._assignments.values()), {}
        waiting, self._waiting = self._waiting, []
        try:
            if failed:
                self._controller.directories_failed(failed)
            if assignments:
                committed = self._controller.assign_directories(assignments)
                for deferred in waiting:
                    committed.on_done(deferred.resolve)
        except KafkaError as error:
            logger.info("the controller does not take reports of log directories: %s", error)
