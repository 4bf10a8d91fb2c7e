"""Runs all checks on one history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from kbroker.model import TopicPartition
from kbroker.protocol.errors import KafkaError
from kbroker.testing.history.committed_offsets import check_committed_offsets
from kbroker.testing.history.contents import (
    check_acknowledged,
    check_known,
    check_order,
    check_transactions,
)
from kbroker.testing.history.operations import History
from kbroker.testing.history.reads import check_groups, check_offsets, check_reads
from kbroker.testing.history.replicas import replica_difference
from kbroker.testing.history.stored import StoredRecord, stored_records

_CONTENT_RULES = (
    check_known,
    check_order,
    check_acknowledged,
    check_transactions,
    check_offsets,
    check_reads,
    check_groups,
)


ValueOf = Callable[[bytes], bytes]


def anomalies(history: History, *, value_of: ValueOf = bytes) -> list[str]:
    """The anomalies of the history, a line for each; empty if there are none. value_of: returns the
    value in the history for the bytes of a stored record.

    Only partitions whose replicas are in the history and to which records were sent are checked for
    lost and missed records; replicas of other partitions are compared with each other.
    """
    contents: dict[TopicPartition, list[StoredRecord]] = {}
    wrong = list(_replica_anomalies(history, contents, value_of))
    rules = (rule(history, contents) for rule in _CONTENT_RULES)
    return [*wrong, *chain.from_iterable(rules), *check_committed_offsets(history)]


def _replica_anomalies(
    history: History, contents: dict[TopicPartition, list[StoredRecord]], value_of: ValueOf
) -> Iterator[str]:
    """The anomalies of the replicas. contents: filled with the records of each partition."""
    topics = {record.partition.topic for record in history.sent.values()}
    for partition, replicas in history.replicas.items():
        high_watermark = max(replica.high_watermark for replica in replicas.values())
        try:
            problem = replica_difference(
                {name: replica.batches for name, replica in replicas.items()}, high_watermark
            )
            if problem is not None:
                yield f"{partition}: {problem}"
            if partition.topic in topics:
                longest = max(replicas.values(), key=lambda replica: len(replica.batches))
                contents[partition] = records = stored_records(longest.batches, high_watermark)
                for record in records:
                    record.value = value_of(record.value)
        except KafkaError as error:
            yield f"{partition}: a replica is damaged: {error}"
