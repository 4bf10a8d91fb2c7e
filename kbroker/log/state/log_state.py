"""The state of one partition's log."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

from kbroker.log.producer.producer_state import (
    ProducerStateManager,
)
from kbroker.log.producer.snapshots import ProducerSnapshots
from kbroker.log.state.leader_epochs import LeaderEpochCache
from kbroker.log.storage.segments import Segments
from kbroker.model import TopicPartition
from kbroker.settings.log_config import LogConfig


class RecoveryStopped(Exception):
    """The start was told to stop. The files are as a crash at this moment would leave them."""


@dataclass(slots=True)
class LogState:
    """What a partition log is made of, while it is loaded and afterwards.

    stop: set when the start is to stop; None once the log is loaded.
    """

    topic_partition: TopicPartition
    config: LogConfig
    segments: Segments
    snapshots: ProducerSnapshots
    producers: ProducerStateManager
    epochs: LeaderEpochCache
    last_snapshot_offset: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    stop: Event | None = None

    def check_stop(self) -> None:
        """Raise RecoveryStopped if the start is to stop."""
        if self.stop is not None and self.stop.is_set():
            raise RecoveryStopped
