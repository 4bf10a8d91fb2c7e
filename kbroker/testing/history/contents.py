"""Checks of the final records of a cluster: no acknowledged record is lost, none is duplicated or
out of order, transactions are atomic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kbroker.model import TopicPartition
from kbroker.testing.history.operations import (
    Ending,
    Guarantee,
    History,
    SentRecord,
    Transaction,
)
from kbroker.testing.history.stored import Fate, StoredRecord

Contents = Mapping[TopicPartition, Sequence[StoredRecord]]
"""The records of each partition by offset."""


def check_known(history: History, contents: Contents) -> Iterator[str]:
    """Check that every stored record was sent to this partition."""
    for partition, records in contents.items():
        for record in records:
            sent = history.sent.get(record.value)
            where = f"{partition} offset {record.offset}"
            if sent is None:
                yield f"{where}: a record was stored that was never sent: {record.value[:60]!r}"
            elif sent.partition != partition:
                yield f"{where}: {sent} was stored, which was sent to {sent.partition}"


def check_order(history: History, contents: Contents) -> Iterator[str]:
    """Check that the visible records of idempotent and transactional producers are stored once and
    in the order of sending.
    """
    for partition, records in contents.items():
        offsets: dict[bytes, int] = {}
        latest: dict[tuple[str, int], SentRecord] = {}
        for record in records:
            sent = history.sent.get(record.value)
            if sent is None or record.fate is not Fate.COMMITTED:
                continue
            if sent.guarantee is Guarantee.AT_LEAST_ONCE:
                continue
            first = offsets.setdefault(record.value, record.offset)
            if first != record.offset:
                yield f"{partition}: {sent} stands twice, at offsets {first} and {record.offset}"
                continue
            is_transactional = sent.guarantee is Guarantee.TRANSACTIONAL
            stream = sent.producer, 0 if is_transactional else sent.epoch
            before = latest.get(stream)
            if before is not None and _turn(before) >= _turn(sent):
                yield f"{partition} offset {record.offset}: {sent} stands after {before}"
                continue
            latest[stream] = sent


def _turn(record: SentRecord) -> tuple[int, int]:
    return record.epoch, record.sequence


def check_acknowledged(history: History, contents: Contents) -> Iterator[str]:
    """Check that every acknowledged record is in its partition, even if its transaction was
    aborted.
    """
    stored = {
        partition: {record.value for record in records} for partition, records in contents.items()
    }
    for value, offset in history.acknowledged.items():
        sent = history.sent[value]
        values = stored.get(sent.partition)
        if values is None or value in values or _was_deleted(history, sent.partition, offset):
            continue
        told = "" if offset is None else f" at offset {offset}"
        yield f"{sent.partition}: lost: {sent} was acknowledged{told} and is not there"


def _was_deleted(history: History, partition: TopicPartition, offset: int | None) -> bool:
    """Whether the record may have been deleted. offset: None if it is unknown."""
    below = history.deleted_below(partition)
    return below > 0 and (offset is None or offset < below)


def check_transactions(history: History, contents: Contents) -> Iterator[str]:
    """Check that all records of a transaction are visible or none, over all partitions; that it has
    ended; and that it ended as its producer was told.
    """
    visible = visible_values(contents)
    left_open = Counter(
        (partition, sent.transaction)
        for partition, records in contents.items()
        for record in records
        if record.fate is Fate.OPEN and (sent := history.sent.get(record.value)) is not None
    )
    for (partition, name), count in left_open.items():
        yield f"{partition}: transaction {name} was never ended there ({count} records are open)"
    for transaction in history.transactions.values():
        yield from _check_transaction(history, contents, transaction, visible)


def _check_transaction(
    history: History, contents: Contents, transaction: Transaction, visible: set[bytes]
) -> Iterator[str]:
    values = [
        value
        for value in transaction.values
        if history.sent[value].partition in contents
        and not _was_deleted(
            history, history.sent[value].partition, history.acknowledged.get(value)
        )
    ]
    seen = [value for value in values if value in visible]
    missing = [value for value in values if value not in visible]
    name, count = transaction.name, len(values)
    if transaction.ending is Ending.ABORTED:
        if seen:
            yield (
                f"transaction {name} was aborted, and {len(seen)} of its {count} records are "
                f"visible: {_shown(history, seen[0])}"
            )
    elif missing and (seen or transaction.ending is Ending.COMMITTED):
        known = "was committed" if transaction.ending else "is visible in part"
        yield (
            f"transaction {name} {known}, and {len(missing)} of its {count} records are missing: "
            f"{_shown(history, missing[0])}"
        )


def _shown(history: History, value: bytes) -> str:
    sent = history.sent[value]
    return f"{sent} in {sent.partition}"


def visible_values(contents: Contents) -> set[bytes]:
    """The values that a read_committed reader gets."""
    return {
        record.value
        for records in contents.values()
        for record in records
        if record.fate is Fate.COMMITTED
    }
