"""The driver of a query: one micro-batch is one transaction, whatever happens in between.

    begin   InitProducerId: a new epoch. The newest token: is the batch in the topic already? Then
            it is skipped. AddPartitionsToTxn.
    write   the tasks, with the producer id that the driver lends them
    commit  the token, perhaps offsets of a group, EndTxn
    fence   after a failure of the tasks: InitProducerId, which aborts; then begin again

The one point where records become visible is EndTxn, and the token becomes visible with them.
Before it a new start aborts them and writes the batch again; after it a new start finds the token.
A commit whose outcome is unknown is left to `begin`, which waits for it and reads the token.

A transaction is never aborted by EndTxn: its markers would carry the epoch of the tasks, one of
which may still write, and before KIP-890 a broker would take those records for part of the next
transaction. InitProducerId writes the markers of the aborted transaction with a higher epoch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..errors import JobError
from ..wire.client import BlockingClient, NoBroker
from .errors import (
    FENCED_CODES,
    BatchTooLong,
    Failure,
    SecondDriver,
    SinkError,
    sink_error,
    task_failure,
)
from .grant import DEFAULT_LIMITS, Grant, WriterLimits
from .map_log import map_records
from .produce import produce
from .runs import Run
from .token_log import TokenLog, tokens_partition
from .tokens import ADVICE, EndOffsets, Token, is_written, left_behind
from .topics import TOKENS_TOPIC, prepare_map_topic, prepare_tokens_topic, target_topic
from .transaction import Producer, TransactionalProducer

logger = logging.getLogger(__name__)

RETRY_PAUSE_S: Final = 1.0
MISSING_MODULE: Final = "ModuleNotFoundError"


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Of one query. query_name: one query, one name. topics: every topic that it may write to.

    transaction_timeout_ms: a batch that takes longer is aborted by the broker. batch_retries: how
    often a batch is begun again. adopt_checkpoint: see `tokens.is_written`, until a batch of the
    checkpoint is written. advice: what to do about a checkpoint that does not fit. has_own_numbers:
    batch ids are not Spark's but rise as the user likes; one that is not above the newest is
    written already. commit_group: a consumer group to which the source's end offsets are committed
    in each transaction. map_topic: gets the offset map of each batch, in its transaction; None for
    no map.
    """

    query_name: str
    topics: tuple[str, ...]
    transaction_timeout_ms: int = 600_000
    batch_retries: int = 3
    adopt_checkpoint: bool = False
    advice: str = ADVICE
    has_own_numbers: bool = False
    commit_group: str | None = None
    tokens_topic: str = TOKENS_TOPIC
    map_topic: str | None = None
    transactional_id_prefix: str = "spark-"
    compression: Compression = Compression.LZ4
    limits: WriterLimits = DEFAULT_LIMITS

    @property
    def transactional_id(self) -> str:
        """Of the query's transactions."""
        return self.transactional_id_prefix + self.query_name


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task says at its end. failure: None if all its records are acknowledged. runs: of the
    offset map, where the rows had their source offsets.
    """

    records: Mapping[TopicPartition, int] = field(default_factory=dict)
    failure: Failure | None = None
    message: str = ""
    runs: Mapping[TopicPartition, Sequence[Run]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One batch: records is 0 and attempts 0 if it was in the topic already."""

    batch_id: int
    records: int
    attempts: int
    seconds: float


WriteBatch = Callable[[Grant], Sequence[TaskReport]]
"""Runs the tasks of a batch. It may raise any exception: the batch is then begun again."""


class _Restart(Exception):
    """The batch is to be begun again."""


class QueryDriver:
    """Writes the batches of one query. Not for use by several threads."""

    def __init__(self, client: BlockingClient, settings: QuerySettings) -> None:
        self._client = client
        self._settings = settings
        self._transactions = TransactionalProducer(
            client, settings.transactional_id, settings.transaction_timeout_ms
        )
        self._token_log: TokenLog | None = None
        self._map_place: TopicPartition | None = None
        self._previous: Producer | None = None
        """The producer of the last transaction that this driver has ended."""
        self._began_s = 0.0
        self._found: Token | None = None
        """The newest token when the batch was begun first."""
        self._left: EndOffsets = {}
        """Of the token of the batch that is written now."""
        self._has_begun = False
        self._adopted_id: str | None = None
        """The query id of the checkpoint whose batches this driver writes."""

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def newest_token(self) -> Token | None:
        """The newest token of the query, None before its first batch. What an earlier run left open
        is ended, and a driver that still runs is fenced. Raises SinkError.
        """
        try:
            token_log = self._tokens()
            self._previous = self._transactions.init(self._previous)
            return token_log.read()[0]
        except KafkaError as error:
            query_name = self._settings.query_name
            raise self._explained(error, f"reading the token of query {query_name}") from error

    def write_batch(
        self,
        batch_id: int,
        write: WriteBatch,
        *,
        query_id: str = "",
        end_offsets: EndOffsets | None = None,
        keeper_id: int | None = None,
    ) -> BatchReport:
        """Write a batch once, even if it was written before. Returns when it is committed.

        query_id: the checkpoint's, empty if unknown. end_offsets: for the token and commit_group.
        keeper_id: for the token, see `Token`. Raises SinkError.
        """
        began_s = self._client.clock.monotonic()
        self._has_begun = False
        last = ""
        for attempt in range(1, self._settings.batch_retries + 2):
            if attempt > 1:
                logger.warning("batch %d begins again (attempt %d): %s", batch_id, attempt, last)
                self._client.clock.sleep(RETRY_PAUSE_S)
            try:
                token = Token(query_id, batch_id, 0, end_offsets or {}, keeper_id)
                records = self._attempt(token, write)
            except _Restart as restart:
                last = str(restart)
                continue
            self._adopted_id = query_id
            seconds = self._client.clock.monotonic() - began_s
            if records is None:
                logger.info("batch %d is in the topic already, skipped", batch_id)
                return BatchReport(batch_id, 0, attempt - 1, seconds)
            return BatchReport(batch_id, records, attempt, seconds)
        raise SinkError(
            f"batch {batch_id} failed {self._settings.batch_retries + 1} times and is not written; "
            f"the last time: {last}"
        )

    def _attempt(self, wanted: Token, write: WriteBatch) -> int | None:
        """One transaction. Returns the records written, None if the batch was written before.
        wanted: the batch's token, without its number of records.
        """
        batch_id = wanted.batch_id
        try:
            grant = self._begin(wanted)
        except KafkaError as error:
            raise self._explained(error, f"beginning batch {batch_id}") from error
        if grant is None:
            return None
        producer = Producer(grant.producer_id, grant.producer_epoch)
        try:
            reports = write(grant)
        except JobError:
            self._fence(batch_id)
            raise
        except Exception as error:  # Spark's, Java's and the frame's have no common base
            self._fence(batch_id)
            line = first_line(error)
            if line.startswith(MISSING_MODULE):
                raise SinkError(
                    f"batch {batch_id} cannot be written: {line}: install this package with its "
                    "dependencies in the Python of the executors, or name another Python by "
                    "PYSPARK_PYTHON"
                ) from error
            raise _Restart(line) from error
        records = self._checked(batch_id, reports)
        self._warn_if_slow(batch_id)
        runs = {place: each for report in reports for place, each in report.runs.items()}
        try:
            token = replace(wanted, records=records, left=self._left)
            self._commit(grant, producer, token, runs)
        except NoBroker as error:
            raise _Restart(f"committing: {error}") from error
        except KafkaError as error:
            raise self._commit_failed(batch_id, error) from error
        self._previous = producer
        return records

    # begin

    def _begin(self, wanted: Token) -> Grant | None:
        """Open the transaction; None if the batch is in the topic. Raises KafkaError, SinkError."""
        settings = self._settings
        topics = {name: target_topic(self._client, name) for name in settings.topics}
        token_log = self._tokens()
        previous, self._previous = self._previous, None
        producer = self._transactions.init(previous)
        token, end = token_log.read()
        if self._is_written(token, wanted):
            self._previous = producer
            return None
        self._left = left_behind(token, wanted.end_offsets)
        grant = Grant(
            address=self._client.address,
            transactional_id=settings.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            tokens=token_log.topic_partition,
            claims_from=end,
            topics=topics,
            compression=settings.compression,
            limits=settings.limits,
        )
        self._began_s = self._client.clock.monotonic()
        written = [*grant.partitions(), grant.tokens]
        if self._map_place is not None:
            written.append(self._map_place)
        self._transactions.add_partitions(producer, written)
        return grant

    def _is_written(self, token: Token | None, wanted: Token) -> bool:
        """Raises SinkError, see `tokens.is_written`."""
        settings = self._settings
        if settings.has_own_numbers:
            return token is not None and token.batch_id >= wanted.batch_id
        is_skipped = is_written(
            token,
            wanted,
            query_name=settings.query_name,
            # A driver that was overtaken must not write its batch again behind those of the other.
            is_adopted=settings.adopt_checkpoint and self._adopted_id != wanted.query_id,
            # This driver's commit, whose answer was lost; or another driver had the batch too.
            is_new=self._has_begun and token != self._found,
            advice=settings.advice,
        )
        if not self._has_begun:
            self._has_begun, self._found = True, token
        return is_skipped

    def _tokens(self) -> TokenLog:
        if self._token_log is None:
            settings = self._settings
            count = prepare_tokens_topic(self._client, settings.tokens_topic)
            partition = tokens_partition(settings.transactional_id, count)
            self._token_log = TokenLog(
                self._client,
                TopicPartition(settings.tokens_topic, partition),
                settings.transactional_id,
            )
            if settings.map_topic is not None:
                count = prepare_map_topic(self._client, settings.map_topic)
                partition = tokens_partition(settings.transactional_id, count)
                self._map_place = TopicPartition(settings.map_topic, partition)
        return self._token_log

    # commit and fence

    def _commit(
        self,
        grant: Grant,
        producer: Producer,
        token: Token,
        runs: Mapping[TopicPartition, Sequence[Run]],
    ) -> None:
        settings = self._settings
        if self._map_place is not None:
            for number, value in enumerate(map_records(token.batch_id, runs)):
                self._write_record(producer, self._map_place, value, number)
        self._write_record(producer, grant.tokens, token.encode(), 0)
        if settings.commit_group is not None and token.end_offsets:
            self._transactions.commit_offsets(producer, settings.commit_group, token.end_offsets)
        self._transactions.commit(producer)

    def _write_record(
        self, producer: Producer, place: TopicPartition, value: bytes, sequence: int
    ) -> None:
        """A record of the driver's own in the transaction. Its key is the transactional id."""
        settings = self._settings
        batch = build_batch(
            [(int(time.time() * 1000), settings.transactional_id.encode(), value, ())],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        produce(
            self._client,
            place,
            batch,
            timeout_ms=settings.limits.produce_timeout_ms,
            transactional_id=settings.transactional_id,
        )

    def _commit_failed(self, batch_id: int, error: KafkaError) -> Exception:
        """What to raise. Whether the transaction was committed may be unknown then."""
        self._raise_if_too_long(batch_id)
        failure = task_failure(error, f"committing batch {batch_id}")
        match failure.failure:
            case Failure.FENCED:
                return self._second_driver()
            case Failure.FATAL:
                self._fence(batch_id)
                return SinkError(failure.message)
            case Failure.RESTART:
                return _Restart(failure.message)

    def _fence(self, batch_id: int) -> None:
        """Abort the transaction after a failure, and fence its tasks. Raises BatchTooLong if that
        was the cause. That it fails does not matter otherwise: `begin` does the same.
        """
        self._raise_if_too_long(batch_id)
        try:
            self._previous = self._transactions.init(None)
        except (KafkaError, NoBroker) as error:
            logger.warning("the transaction of batch %d was not aborted: %s", batch_id, error)

    def _checked(self, batch_id: int, reports: Sequence[TaskReport]) -> int:
        """The number of records that the tasks wrote. Aborts and raises if one of them failed."""
        by_failure = {report.failure: report.message for report in reversed(reports)}
        if Failure.FENCED in by_failure:
            self._raise_if_too_long(batch_id)
            raise self._second_driver()
        if Failure.FATAL in by_failure:
            self._fence(batch_id)
            raise SinkError(f"batch {batch_id} cannot be written: {by_failure[Failure.FATAL]}")
        if Failure.RESTART in by_failure:
            self._fence(batch_id)
            raise _Restart(by_failure[Failure.RESTART])
        counts: dict[TopicPartition, int] = {}
        for report in reports:
            for partition, records in report.records.items():
                if partition in counts:  # claims forbid it
                    self._fence(batch_id)
                    raise SinkError(f"batch {batch_id}: two tasks wrote to {partition}")
                counts[partition] = records
        return sum(counts.values())

    # time, and other drivers

    def _elapsed_s(self) -> float:
        return self._client.clock.monotonic() - self._began_s

    def _raise_if_too_long(self, batch_id: int) -> None:
        timeout_s = self._settings.transaction_timeout_ms / 1000
        if self._elapsed_s() < timeout_s:
            return
        raise BatchTooLong(
            f"batch {batch_id} took longer than transaction_timeout_ms="
            f"{self._settings.transaction_timeout_ms}, so the broker aborted it: make batches "
            "smaller (maxOffsetsPerTrigger), or raise transaction_timeout_ms (brokers allow "
            "transaction.max.timeout.ms, 15 minutes by default)"
        )

    def _warn_if_slow(self, batch_id: int) -> None:
        timeout_s = self._settings.transaction_timeout_ms / 1000
        if self._elapsed_s() > timeout_s / 2:
            logger.warning(
                "batch %d took %.0f s, more than half of the transaction timeout of %.0f s: make "
                "batches smaller (maxOffsetsPerTrigger), or raise transaction_timeout_ms",
                batch_id,
                self._elapsed_s(),
                timeout_s,
            )

    def _explained(self, error: KafkaError, action: str) -> Exception:
        """The exception for a KafkaError of `_begin`."""
        if error.code in FENCED_CODES:
            return self._second_driver()
        if error.code is ErrorCode.INVALID_TXN_STATE:
            return _Restart(f"{action}: {error}")
        return sink_error(error, action)

    def _second_driver(self) -> SecondDriver:
        settings = self._settings
        return SecondDriver(
            f"another driver writes as query {settings.query_name} (transactional id "
            f"{settings.transactional_id}) and has fenced this one: stop one of the two, or give "
            "them different query names and checkpoints"
        )


def first_line(error: Exception) -> str:
    """The line of an exception that says most: the last of the first Python traceback in it, as
    Spark's errors of tasks have one, else its first line.
    """
    lines = str(error).splitlines()
    for number, line in enumerate(lines):
        if line.endswith("Traceback (most recent call last):"):
            for following in lines[number + 1 :]:
                if following and not following[0].isspace():
                    return following[:500]
    stripped = [line.strip() for line in lines if line.strip()]
    return stripped[0][:500] if stripped else type(error).__name__
