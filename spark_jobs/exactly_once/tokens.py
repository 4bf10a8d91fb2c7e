"""What `__spark_batches` holds: tokens of finished batches, and claims of task attempts.

Both are JSON. A token's key is the transactional id; the newest one of a committed transaction says
how far its query is. A claim's key names a target partition too; the first one of a producer epoch
says which task attempt may write to it. How they are read is in `token_log` and `claims`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbroker.client.cluster import TopicPartition

from .errors import SinkError

TOKEN_VERSION: Final = 1
CLAIM_SEPARATOR: Final = "/claim/"

ADVICE: Final = (
    "use the checkpoint that belongs to the output, another query_name, or adopt_checkpoint=True "
    "to write from here on without regard to what the topic has"
)
"""Of `kafka_sink`, where checkpoint and topic do not fit together."""

EndOffsets = Mapping[str, Mapping[int, int]]
"""By topic and partition: where a batch ends in its source, exclusive."""


@dataclass(frozen=True, slots=True)
class Token:
    """A batch that is in the topic. query_id: of the checkpoint, empty if unknown. keeper_id: the
    producer id of a copy that keeps its source's offsets (`restore.kept`), None for others. left:
    as end_offsets, of source topics that the query has read before and the batch has not.
    """

    query_id: str
    batch_id: int
    records: int
    end_offsets: EndOffsets = field(default_factory=dict)
    keeper_id: int | None = None
    left: EndOffsets = field(default_factory=dict)

    @property
    def reached(self) -> EndOffsets:
        """How far the query is in each topic, also where it does not read any more."""
        return {**self.left, **self.end_offsets}

    def encode(self) -> bytes:
        """The record's value."""
        fields: dict[str, object] = {
            "version": TOKEN_VERSION,
            "query_id": self.query_id,
            "batch_id": self.batch_id,
            "records": self.records,
            "end_offsets": _by_name(self.end_offsets),
        }
        if self.keeper_id is not None:
            fields["keeper_id"] = self.keeper_id
        if self.left:
            fields["left"] = _by_name(self.left)
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> Token:
        """Raises SinkError for a value that is no token."""
        try:
            fields = json.loads(value)
            keeper_id = fields.get("keeper_id")
            return cls(
                str(fields["query_id"]),
                int(fields["batch_id"]),
                int(fields["records"]),
                _by_number(fields["end_offsets"]),
                None if keeper_id is None else int(keeper_id),
                _by_number(fields.get("left", {})),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SinkError(
                f"a record in the topic of tokens is not a token: {value[:200]!r}; was it written "
                "by another program, or by a newer release?"
            ) from None


def left_behind(token: Token | None, read: EndOffsets) -> EndOffsets:
    """Of the next token, see `Token`. token: the newest; read: the end offsets of the next batch.

    Spark forgets a topic that a batch has no offsets of, and begins at its first offset when it
    comes back.
    """
    known = {} if token is None else token.reached
    return {topic: offsets for topic, offsets in known.items() if topic not in read}


def _by_name(offsets: EndOffsets) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in each.items()}
        for topic, each in offsets.items()
    }


def _by_number(offsets: Mapping[str, Mapping[str, int]]) -> EndOffsets:
    return {
        str(topic): {int(partition): int(offset) for partition, offset in each.items()}
        for topic, each in offsets.items()
    }


@dataclass(frozen=True, slots=True)
class Claim:
    """A task attempt that is going to write to a partition. attempt: unique; task: the number of
    the Spark partition.
    """

    producer_id: int
    producer_epoch: int
    task: int
    attempt: str

    def encode(self) -> bytes:
        """The record's value."""
        fields = [self.producer_id, self.producer_epoch, self.task, self.attempt]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> Claim | None:
        """None for a value that is no claim."""
        try:
            producer_id, producer_epoch, task, attempt = json.loads(value)
            return cls(int(producer_id), int(producer_epoch), int(task), str(attempt))
        except (ValueError, TypeError):
            return None


def claim_key(transactional_id: str, topic_partition: TopicPartition) -> bytes:
    """The key of the claims on a target partition."""
    return f"{transactional_id}{CLAIM_SEPARATOR}{topic_partition}".encode()


def is_written(
    token: Token | None,
    wanted: Token,
    *,
    query_name: str,
    is_adopted: bool,
    is_new: bool = False,
    advice: str = ADVICE,
) -> bool:
    """Whether the batch is in the topic already, so that it must be skipped. Spark repeats only the
    newest batch of its checkpoint, with the end offsets that it had, so that is one whose number
    the newest token has.

    token: the newest one of the transactional id. wanted: the token that the batch is to have.
    is_adopted: a checkpoint that the token does not belong to, or belongs to with a gap, is
    accepted. is_new: the token was committed after this driver began the batch. Raises SinkError if
    token and checkpoint do not tell one story, with the advice.
    """
    contradiction = _contradiction(token, wanted, query_name, advice, is_new=is_new)
    if contradiction is None:
        return token is not None and token.batch_id == wanted.batch_id
    if is_adopted:
        return False
    raise SinkError(contradiction)


def _contradiction(
    token: Token | None, wanted: Token, query_name: str, advice: str, *, is_new: bool
) -> str | None:
    """What does not fit together and what to do, in one line; None if it fits."""
    batch_id = wanted.batch_id
    if token is None:
        if batch_id == 0:
            return None
        return (
            f"the checkpoint is at batch {batch_id}, but no batch of query {query_name} was "
            f"ever written: {advice}"
        )
    if token.query_id and wanted.query_id and token.query_id != wanted.query_id:
        return (
            f"query {query_name} wrote up to batch {token.batch_id} with another checkpoint "
            f"(query id {token.query_id}, this one is {wanted.query_id}): {advice}"
        )
    if token.batch_id > batch_id:
        return (
            f"the checkpoint is at batch {batch_id}, but query {query_name} wrote up to batch "
            f"{token.batch_id}: the checkpoint is new or an older copy, or another driver of the "
            f"query runs, and going on would leave records out: {advice}"
        )
    if token.batch_id < batch_id - 1:
        return (
            f"the checkpoint is at batch {batch_id}, but the newest batch of query {query_name} in "
            f"the topic is {token.batch_id}: {advice}"
        )
    if token.batch_id < batch_id:
        return None
    if token.end_offsets and wanted.end_offsets:
        if token.end_offsets == wanted.end_offsets:
            return None
        return (
            f"batch {batch_id} of query {query_name} is in the topic with other end offsets than "
            "the checkpoint has: the checkpoint is new or an older copy, and skipping the batch "
            f"would leave records out: {advice}"
        )
    if batch_id == 0 and not wanted.query_id and not is_new:
        return (
            f"batch 0 of query {query_name} is in the topic, and without query_id or end_offsets "
            "nothing says whether this checkpoint wrote it: if it did, give query_id= a name that "
            f"only this checkpoint has; if not: {advice}"
        )
    return None
