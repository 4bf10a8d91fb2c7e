"""Simulated producers: idempotent ones, transactional ones, and ones that are neither. One batch is
in flight at a time; it is resent unchanged until it is acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kbroker.client.cluster import TRANSACTION_COORDINATOR, Client, check
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.simulation.workload import (
    EVENTS,
    LEDGER,
    PARTITIONS,
    REQUEST_TIMEOUT_S,
    Workload,
    persist,
)
from kbroker.testing.cluster_state import committed_offsets
from kbroker.testing.history.operations import (
    Ending,
    Guarantee,
    OffsetCommit,
    OffsetFetch,
    SentRecord,
)

MEAN_PAUSE_S: Final = 0.25
MOST_RECORDS: Final = 4
ABORT_SHARE: Final = 0.25
GIVE_UP_SHARE: Final = 0.05
"""The share of transactions that their producer leaves open, as after a crash, before it
restarts.
"""
FETCH_EVERY: Final = 8
TRANSACTION_TIMEOUT_MS: Final = 10_000
LAST_ADD_PARTITIONS: Final = 3
"""The version of AddPartitionsToTxn that clients send; later ones are for brokers only."""
OFFSETS_PLACE: Final = TopicPartition(LEDGER, 0)
"""The group for which transactional producers commit offsets."""


class BatchWriter:
    """The identity of one producer, and its records. epoch: that of the history, incremented by
    each `begin_epoch`.
    """

    def __init__(self, workload: Workload, name: str, guarantee: Guarantee) -> None:
        self.name = name
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.transactional_id: str | None = None
        self.is_new_protocol = True
        """Whether it relies on transaction.version 2 (KIP-890)."""
        self._workload = workload
        self._guarantee = guarantee
        self._epoch = -1
        self._counts: Counter[TopicPartition] = Counter()
        self._next_sequences: Counter[TopicPartition] = Counter()

    def begin_epoch(self) -> None:
        """The client starts as a new producer."""
        self._epoch += 1
        self._counts.clear()
        self.identify(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

    def identify(self, producer_id: int, producer_epoch: int) -> None:
        """Set its producer id and epoch; with a new one sequences start at 0."""
        if (producer_id, producer_epoch) != (self.producer_id, self.producer_epoch):
            self.producer_id, self.producer_epoch = producer_id, producer_epoch
            self._next_sequences.clear()

    async def write(
        self, client: Client, partition: TopicPartition, transaction: str | None = None
    ) -> None:
        """Send a batch until it is acknowledged. Raises KafkaError, after which the batch may or
        may not be stored.
        """
        history, count = self._workload.history, self._workload.random.randint(1, MOST_RECORDS)
        values = []
        for _ in range(count):
            number = self._counts[partition]
            self._counts[partition] += 1
            value = f"{self.name}:{self._epoch}:{partition}:{number}".encode()
            history.send(
                SentRecord(
                    self.name, self._epoch, number, partition, value, self._guarantee, transaction
                )
            )
            values.append(value)
        base_offset = await self._deliver(client, partition, values, transaction is not None)
        for index, value in enumerate(values):
            history.acknowledge(value, None if base_offset < 0 else base_offset + index)
        self._workload.counts["records acknowledged"] += count

    async def _deliver(
        self,
        client: Client,
        partition: TopicPartition,
        values: Sequence[bytes],
        is_transactional: bool,
    ) -> int:
        is_idempotent = self.producer_id != NO_PRODUCER_ID
        now_ms = self._workload.timestamp_ms()
        batch = build_batch(
            [(now_ms, None, value, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self._next_sequences[partition] if is_idempotent else NO_SEQUENCE,
            is_transactional=is_transactional,
        )
        self._next_sequences[partition] += len(values)
        return await persist(client, lambda: self._attempt(client, partition, bytes(batch)))

    async def _attempt(self, client: Client, partition: TopicPartition, batch: bytes) -> int:
        leader_id = await client.leader(partition)
        data = ProduceRequest.PartitionProduceData(index=partition.partition, records=batch)
        topic = ProduceRequest.TopicProduceData(
            name=partition.topic,
            topic_id=client.topics[partition.topic].topic_id,
            partition_data=[data],
        )
        request = ProduceRequest(
            acks=-1,
            timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
            topic_data=[topic],
            transactional_id=self.transactional_id,
        )
        response = await client.to_node(
            leader_id,
            request,
            ProduceResponse,
            max_version=None if self.is_new_protocol else 11,
        )
        answer = response.responses[0].partition_responses[0]
        if answer.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            check(answer.error_code, f"Produce to {partition}")
        return answer.base_offset


async def _init_producer_id(workload: Workload, client: Client, writer: BatchWriter) -> None:
    """A producer id for the writer, or the next epoch of its transactional id."""
    transactional_id = writer.transactional_id
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
    )

    async def attempt() -> InitProducerIdResponse:
        if transactional_id is None:
            response = await client.any(request, InitProducerIdResponse, max_version=5)
        else:
            response = await client.to_coordinator(
                transactional_id,
                request,
                InitProducerIdResponse,
                key_type=TRANSACTION_COORDINATOR,
                max_version=5,
            )
        check(response.error_code, "InitProducerId")
        return response

    response = await persist(client, attempt, transactional_id=transactional_id)
    writer.identify(response.producer_id, response.producer_epoch)


async def produce(workload: Workload, name: str, guarantee: Guarantee) -> None:
    """An idempotent or plain producer to `events`; starts again as a new producer after an
    error.
    """
    writer = BatchWriter(workload, name, guarantee)
    while not workload.is_stopping:
        writer.begin_epoch()
        try:
            async with workload.client(name) as client:
                if guarantee is Guarantee.IDEMPOTENT:
                    await _init_producer_id(workload, client, writer)
                while not workload.is_stopping:
                    index = workload.random.randrange(PARTITIONS)
                    await writer.write(client, TopicPartition(EVENTS, index))
                    await workload.pause(MEAN_PAUSE_S)
        except (KafkaError, StartupError) as error:
            workload.note(f"{name} begins anew: {error}")
            await workload.pause(MEAN_PAUSE_S)


class TransactionalProducer:
    """Transactions over several partitions of `ledger`, and offsets for the group of the same name.
    Transactions that it leaves open, as after a crash, it ends when it restarts; the transaction
    timeout cannot be relied on, since the coordinator's wall clock may be half an hour behind.
    """

    def __init__(self, workload: Workload, name: str, *, is_new_protocol: bool) -> None:
        self._workload = workload
        self._name = name
        self._writer = BatchWriter(workload, name, Guarantee.TRANSACTIONAL)
        self._writer.transactional_id = name
        self._writer.is_new_protocol = is_new_protocol
        self._is_new_protocol = is_new_protocol
        self._count = 0
        self._is_open = False

    async def run(self) -> None:
        """Run until the workload stops and no transaction is open."""
        workload = self._workload
        while not workload.is_stopping or self._is_open:
            self._writer.begin_epoch()
            try:
                async with workload.client(self._name) as client:
                    await _init_producer_id(workload, client, self._writer)
                    self._is_open = False
                    while not workload.is_stopping and await self._transact(client):
                        await workload.pause(MEAN_PAUSE_S)
            except (KafkaError, StartupError) as error:
                workload.note(f"{self._name} begins anew: {error}")
                await workload.pause(MEAN_PAUSE_S)

    async def _transact(self, client: Client) -> bool:
        """One transaction. Returns whether the producer can continue; raises KafkaError if the
        outcome of the transaction is unknown.
        """
        workload, random = self._workload, self._workload.random
        self._count += 1
        transaction = f"{self._name}-{self._count}"
        workload.history.begin(transaction)
        self._is_open = True
        ending = Ending.ABORTED if random.random() < ABORT_SHARE else Ending.COMMITTED
        has_failed = False
        try:
            for index in random.sample(range(PARTITIONS), random.randint(1, PARTITIONS)):
                partition = TopicPartition(LEDGER, index)
                if not self._is_new_protocol:
                    await self._add_partition(client, partition)
                await self._writer.write(client, partition, transaction)
            if random.random() < 0.5:
                await self._commit_offset(client, transaction)
        except KafkaError as error:
            workload.note(f"{transaction} is aborted: {error}")
            ending, has_failed = Ending.ABORTED, True
        if random.random() < GIVE_UP_SHARE:
            return False
        await self._end(client, committed=ending is Ending.COMMITTED)
        self._is_open = False
        workload.history.end(transaction, ending, workload.now_ms())
        workload.counts[f"transactions {ending.value}"] += 1
        if self._count % FETCH_EVERY == 0:
            await fetch_committed(workload, self._name, [OFFSETS_PLACE])
        # Without a new epoch the sequence of a batch that may be stored cannot be used again.
        return self._is_new_protocol or not has_failed

    async def _add_partition(self, client: Client, partition: TopicPartition) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._writer.producer_id,
            v3_and_below_producer_epoch=self._writer.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=partition.topic, partitions=[partition.partition]
                )
            ],
        )

        async def attempt() -> None:
            response = await client.to_coordinator(
                self._name,
                request,
                AddPartitionsToTxnResponse,
                key_type=TRANSACTION_COORDINATOR,
                max_version=LAST_ADD_PARTITIONS,
            )
            for topic in response.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    check(result.partition_error_code, "AddPartitionsToTxn")

        await persist(client, attempt, transactional_id=self._name)

    async def _commit_offset(self, client: Client, transaction: str) -> None:
        workload, writer = self._workload, self._writer
        workload.history.commits.append(
            OffsetCommit(
                self._name, OFFSETS_PLACE, self._count, workload.now_ms(), None, transaction
            )
        )
        if not self._is_new_protocol:
            await self._add_offsets(client)
        committed = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=OFFSETS_PLACE.partition,
            committed_offset=self._count,
            committed_metadata="",
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self._name,
            group_id=self._name,
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=OFFSETS_PLACE.topic, partitions=[committed]
                )
            ],
        )

        async def attempt() -> None:
            response = await client.to_coordinator(
                self._name,
                request,
                TxnOffsetCommitResponse,
                max_version=None if self._is_new_protocol else 4,
            )
            for topic in response.topics:
                for partition in topic.partitions:
                    check(partition.error_code, "TxnOffsetCommit")

        await persist(client, attempt, group=self._name)

    async def _add_offsets(self, client: Client) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self._name,
            producer_id=self._writer.producer_id,
            producer_epoch=self._writer.producer_epoch,
            group_id=self._name,
        )

        async def attempt() -> None:
            response = await client.to_coordinator(
                self._name,
                request,
                AddOffsetsToTxnResponse,
                key_type=TRANSACTION_COORDINATOR,
            )
            check(response.error_code, "AddOffsetsToTxn")

        await persist(client, attempt, transactional_id=self._name)

    async def _end(self, client: Client, *, committed: bool) -> None:
        writer = self._writer
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            committed=committed,
        )

        async def attempt() -> EndTxnResponse:
            response = await client.to_coordinator(
                self._name,
                request,
                EndTxnResponse,
                key_type=TRANSACTION_COORDINATOR,
                max_version=None if self._is_new_protocol else 4,
            )
            check(response.error_code, "EndTxn")
            return response

        response = await persist(client, attempt, transactional_id=self._name)
        if response.producer_id >= 0:
            writer.identify(response.producer_id, response.producer_epoch)


async def fetch_committed(
    workload: Workload, group: str, partitions: Sequence[TopicPartition]
) -> None:
    """Fetch committed offsets; if that fails, note it."""
    began_ms = workload.now_ms()
    try:
        found = await committed_offsets(workload.bootstrap_servers, group, partitions)
    except (KafkaError, StartupError) as error:
        workload.note(f"committed offsets of {group}: {error}")
        return
    for partition, offset in found.items():
        workload.history.fetches.append(
            OffsetFetch(group, partition, offset, began_ms, workload.now_ms())
        )
    workload.counts["committed offsets fetched"] += 1
