"""`groups-audit`: reads `__consumer_offsets` and `__transaction_state` up to their ends.

It needs neither Spark nor Java, and changes nothing. The lag of a commit is what the partition had
behind it then: its end is the offset of the first record that is later than the commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from kbroker.client.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.records import Record
from kbroker.protocol.errors import KafkaError, MalformedRequest

from ..exactly_once.errors import sink_error
from ..exactly_once.token_log import read_uncommitted
from ..topic_checks import counted
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.offsets import is_missing, list_offset, list_offsets, topic_facts
from .history import Commit, OffsetsReplay, OpenCommits, PartitionHistory, Place, committer
from .options import AuditOptions
from .records import TransactionState, transaction_state
from .report import AuditedPartition, AuditPoint, AuditReport
from .transactions import stuck_transactions, transactional_ids

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
RETRY_S: Final = 20.0


def groups_audit(options: AuditOptions, now_ms: int | None = None) -> AuditReport:
    """Read both topics. now_ms: the clock's by default. Raises JobError."""
    client = BlockingClient(ClusterAddress(options.bootstrap_servers, retry_timeout_s=RETRY_S))
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    try:
        return _audit(client, options, now)
    except KafkaError as error:
        raise sink_error(error, "groups-audit") from error
    finally:
        client.close()


def _audit(client: BlockingClient, options: AuditOptions, now_ms: int) -> AuditReport:
    states, unreadable = _transaction_states(client)
    names = transactional_ids(states)
    histories: dict[Place, PartitionHistory] = {}
    undecided: dict[int, OpenCommits] = {}
    aborted = 0
    for place in _partitions(client, OFFSETS_TOPIC):
        replay = OffsetsReplay(options.points, options.groups)
        for header, record in _records(client, place):
            replay.apply(header, record)
        histories |= replay.histories
        undecided |= replay.open
        aborted += replay.aborted
        unreadable += replay.unreadable
    partitions = _audited(client, histories, names)
    stuck = stuck_transactions(states, undecided, now_ms=now_ms, stuck_ms=options.stuck_ms)
    notes = [f"group {name} has committed no offsets" for name in _absent(options, histories)]
    if unreadable:
        notes.append(f"{counted(unreadable, 'record')} could not be read and are left out")
    return AuditReport(partitions, stuck, aborted, notes)


def _absent(options: AuditOptions, histories: Mapping[Place, PartitionHistory]) -> list[str]:
    found = {group for group, _, _ in histories}
    return [name for name in options.groups if name not in found]


def _transaction_states(client: BlockingClient) -> tuple[dict[str, TransactionState], int]:
    """The newest state of each transactional id, and how many records could not be read."""
    states: dict[str, TransactionState] = {}
    unreadable = 0
    for place in _partitions(client, TRANSACTIONS_TOPIC):
        for _, record in _records(client, place):
            try:
                state = transaction_state(record)
            except MalformedRequest:
                unreadable += 1
                continue
            if state is not None:
                states[state.transactional_id] = state
    return states, unreadable


def _partitions(client: BlockingClient, topic: str) -> list[TopicPartition]:
    """Empty if the topic does not exist yet."""
    try:
        count = client.retry(partial(client.partition_count, topic), is_final=is_missing)
    except KafkaError as error:
        if not is_missing(error):
            raise
        return []
    return [TopicPartition(topic, index) for index in range(count)]


def _records(client: BlockingClient, place: TopicPartition) -> Iterator[tuple[BatchHeader, Record]]:
    start, end = (
        client.retry(partial(list_offset, client, place, timestamp))
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    )
    return read_uncommitted(client, place, start, end)


def _audited(
    client: BlockingClient,
    histories: Mapping[Place, PartitionHistory],
    names: Mapping[int, str],
) -> list[AuditedPartition]:
    facts = topic_facts(client, sorted({topic for _, topic, _ in histories}))
    ends = {
        TopicPartition(name, index): end
        for name, each in facts.items()
        for index, end in each.latest.items()
    }
    then = _ends_then(client, histories, ends)
    audited = []
    for place, history in sorted(histories.items()):
        group, topic, index = place
        end = ends.get(TopicPartition(topic, index))
        topic_id = facts[topic].topic_id if topic in facts else ""
        points = []
        for commit in history.newest:
            by = committer(commit, topic, index, topic_id=topic_id, transactional_ids=names)
            reached = then.get((topic, index, commit.time_ms))
            points.append(
                AuditPoint(commit.offset, commit.time_ms, by, reached, _lag(commit, reached))
            )
        newest = history.newest[-1] if history.newest and not history.is_deleted else None
        audited.append(
            AuditedPartition(
                group,
                topic,
                index,
                history.count,
                history.is_deleted,
                end,
                None if newest is None else _lag(newest, end),
                tuple(points),
            )
        )
    return audited


def _lag(commit: Commit, end: int | None) -> int | None:
    return None if end is None else max(0, end - commit.offset)


def _ends_then(
    client: BlockingClient,
    histories: Mapping[Place, PartitionHistory],
    ends: Mapping[TopicPartition, int],
) -> dict[tuple[str, int, int], int]:
    """Where a partition ended at the times of its commits, by topic, partition and time. A request
    asks for one time of each partition.
    """
    wanted: dict[TopicPartition, list[int]] = {}
    for (_, topic, index), history in histories.items():
        place = TopicPartition(topic, index)
        if place in ends:
            wanted.setdefault(place, []).extend(commit.time_ms for commit in history.newest)
    found: dict[tuple[str, int, int], int] = {}
    times: Sequence[Sequence[int]] = [sorted(set(each)) for each in wanted.values()]
    for number in range(max(map(len, times), default=0)):
        asked = {
            place: each[number] + 1
            for place, each in zip(wanted, times, strict=True)
            if number < len(each)
        }
        answers = client.retry(partial(list_offsets, client, asked))
        for place, offset in answers.items():
            # No record is that late: the partition has not grown since.
            reached = offset if offset >= 0 else ends[place]
            found[place.topic, place.partition, asked[place] - 1] = reached
    return found
