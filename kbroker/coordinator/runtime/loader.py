"""Loading a shard: replay of its log in steps, so that the loop is not blocked.

Any error makes the shard FAILED: clients then look for another coordinator, and the next leader
epoch loads it again. A record that cannot be decoded is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Generic

from kbroker.coordinator.runtime.coordinator_log import CoordinatorLog
from kbroker.coordinator.runtime.host import Host, HostStatus, S
from kbroker.log_lines import shown
from kbroker.model import InvariantError
from kbroker.ports import Timers
from kbroker.protocol.batches.batch_header import BatchHeader, iter_batches
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

LOAD_STEP_BYTES: Final = 256 * 1024
"""The limit of one step, in bytes, for the log read and for keys and values replayed."""


class ShardLoader(Generic[S]):
    """Reads and replays the logs of loading shards. on_loaded: called with each host once its log
    is replayed and the host is ACTIVE.
    """

    __slots__ = ("_log", "_on_loaded", "_step_bytes", "_timers")

    def __init__(
        self,
        log: CoordinatorLog,
        timers: Timers,
        *,
        step_bytes: int,
        on_loaded: Callable[[Host[S]], None],
    ) -> None:
        self._log = log
        self._timers = timers
        self._step_bytes = step_bytes
        self._on_loaded = on_loaded

    def load(self, host: Host[S]) -> None:
        """Read the next step. A host with an empty log becomes ACTIVE within this call; every step
        that replays records runs in its own turn of the loop.
        """
        self._attempt(host, self._read_step)

    def _attempt(self, host: Host[S], step: Callable[[Host[S]], None]) -> None:
        if host.status is not HostStatus.LOADING:
            return
        try:
            step(host)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 - of this shard: the others go on
            self._failed(host, error)

    def _read_step(self, host: Host[S]) -> None:
        data = self._log.read(host.topic_partition, host.load_offset, self._step_bytes)
        if data:
            replay = partial(self._replay_step, data)
            self._timers.call_later(0, lambda: self._attempt(host, replay))
            return
        host.status = HostStatus.ACTIVE
        if host.record_count:
            logger.info(
                "Loaded %s epoch %d: %d records in %d ms",
                host.topic_partition,
                host.epoch,
                host.record_count,
                self._timers.monotonic_ms() - host.load_started_ms,
            )
        self._on_loaded(host)

    def _replay_step(self, data: bytes, host: Host[S]) -> None:
        """Replay whole batches of data until step_bytes of keys and values are reached; the next
        step reads the other batches again.
        """
        replayed_bytes = 0
        for position, header in iter_batches(data):
            if replayed_bytes >= self._step_bytes:
                break
            if header.last_offset >= host.load_offset:
                batch = memoryview(data)[position : position + header.size_bytes]
                replayed_bytes += _replay_batch(host, batch, header)
                host.load_offset = header.next_offset
        self.load(host)

    @staticmethod
    def _failed(host: Host[S], error: Exception) -> None:
        logger.error(
            "%s epoch %d failed to load: %s",
            host.topic_partition,
            host.epoch,
            shown(error),
            exc_info=None if isinstance(error, KafkaError) else error,
        )
        if host.status is not HostStatus.CLOSED:
            host.status = HostStatus.FAILED


def _replay_batch(host: Host[S], batch: memoryview, header: BatchHeader) -> int:
    """Returns the size of the batch's keys and values in bytes."""
    shard = host.shard
    size = 0
    host.record_count += header.record_count
    records = iter_records(batch, header)
    if header.is_control:
        for record in records:
            kind = control_type(record)
            if kind in (ControlType.COMMIT, ControlType.ABORT):
                shard.end_transaction(header.producer_id, commit=kind is ControlType.COMMIT)
        return 0
    decode, replay = shard.decode, shard.replay
    if header.is_transactional:
        replay = partial(shard.replay_transactional, header.producer_id)
    for record in records:
        size += len(record.key or b"") + len(record.value or b"")
        try:
            decoded = decode(record.key, record.value)
        except KafkaError as error:
            logger.error(
                "%s offset %d skipped: %s", host.topic_partition, record.offset, shown(error)
            )
            continue
        if decoded is not None:
            replay(decoded)
    return size
