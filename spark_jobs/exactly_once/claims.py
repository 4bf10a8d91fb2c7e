"""One task attempt per target partition and transaction, decided by the order of a log.

Sequences keep a producer id from writing a batch twice, but not two task attempts from writing two
different batches: whether a batch is a duplicate is decided by its sequence range alone. Spark runs
second attempts after a failure, by speculation, and (numbered from 0 again, so that a task cannot
tell) after a lost shuffle file. So an attempt appends a claim to the topic of tokens before its
first batch for a partition, and reads the claims of the producer epoch: the first one is valid.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from kbroker.client.cluster import TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.errors import KafkaError

from ..wire.client import BlockingClient
from .errors import AttemptRefused, Failure, TaskFailure, task_failure
from .grant import Grant
from .produce import produce
from .token_log import read_uncommitted
from .tokens import Claim, claim_key


class Claims:
    """The claims of one task attempt. task: the number of its Spark partition. attempt: unique."""

    def __init__(self, client: BlockingClient, grant: Grant, *, task: int, attempt: str) -> None:
        self._client = client
        self._grant = grant
        self._claim = Claim(grant.producer_id, grant.producer_epoch, task, attempt)
        self._owned: set[TopicPartition] = set()
        self._first: dict[bytes, Claim] = {}
        self._position = grant.claims_from

    def ensure(self, partitions: Sequence[TopicPartition]) -> None:
        """Claim those of the partitions that this attempt does not own yet.

        Raises AttemptRefused where an earlier attempt of this task was first, and TaskFailure where
        another task was: then the rows are not arranged by target partition.
        """
        wanted = [partition for partition in partitions if partition not in self._owned]
        if not wanted:
            return
        keys = {
            claim_key(self._grant.transactional_id, partition): partition for partition in wanted
        }
        try:
            self._read_up_to(self._append(list(keys)))
        except KafkaError as error:
            raise task_failure(error, f"claiming partitions in {self._grant.tokens}") from error
        for key, partition in keys.items():
            self._check(self._first.get(key), partition)
        self._owned.update(wanted)

    def _append(self, keys: Sequence[bytes]) -> int:
        """Append the claims; returns the end of their batch, exclusive."""
        value = self._claim.encode()
        now_ms = int(time.time() * 1000)
        batch = build_batch([(now_ms, key, value, ()) for key in keys])
        tokens, timeout_ms = self._grant.tokens, self._grant.limits.produce_timeout_ms
        return produce(self._client, tokens, batch, timeout_ms=timeout_ms) + len(keys)

    def _read_up_to(self, end: int) -> None:
        self._client.retry(lambda: self._read(end))

    def _read(self, end: int) -> None:
        tokens = self._grant.tokens
        for _, record in read_uncommitted(self._client, tokens, self._position, end):
            self._position = record.offset + 1
            claim = None if record.value is None else Claim.decode(record.value)
            if claim is not None and record.key is not None and self._is_current(claim):
                self._first.setdefault(record.key, claim)
        self._position = max(self._position, end)

    def _is_current(self, claim: Claim) -> bool:
        mine = self._claim
        return (claim.producer_id, claim.producer_epoch) == (mine.producer_id, mine.producer_epoch)

    def _check(self, first: Claim | None, partition: TopicPartition) -> None:
        if first == self._claim:
            return
        if first is None:
            raise TaskFailure(
                Failure.RESTART, f"the claim on {partition} was lost: {self._grant.tokens} was cut"
            )
        if first.task == self._claim.task:
            raise AttemptRefused(
                f"attempt refused: an earlier attempt of task {first.task} may have written to "
                f"{partition} in this transaction; the batch begins again under a new epoch"
            )
        raise TaskFailure(
            Failure.FATAL,
            f"tasks {first.task} and {self._claim.task} both have rows for {partition}: with "
            "arrangement='keep' each target partition must be in one Spark partition; "
            "use arrangement='shuffle'",
        )
