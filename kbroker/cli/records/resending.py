"""Copies records between topics or clusters, in two steps: a plan, which a user can be asked about,
and the copying, which reads exactly the offsets of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import typer

from kbroker.cli.console.client_properties import (
    BOOTSTRAP_SERVERS,
    TRANSACTION_TIMEOUT,
    ClientProperties,
)
from kbroker.cli.console.output import counted, progress
from kbroker.cli.records.deliveries import Deliveries
from kbroker.cli.records.produce import Codec, producer_config
from kbroker.cli.records.query import MatchingRecords, Query
from kbroker.cli.records.source import Bounds, RecordSource, Wanted
from kbroker.cli.session import INT32_MAX, connect, properties
from kbroker.model import StartupError, TopicPartition

if TYPE_CHECKING:
    from kbroker.cli.records.offset_ranges import OffsetRange
    from kbroker.client.cluster import Client
    from kbroker.client.consumer import ConsumedRecord, ConsumerConfig
    from kbroker.client.producer import Producer, ProducerConfig

TRANSACTION_TIMEOUT_MS: Final = 600_000
"""After which the coordinator aborts, where no property says it: a large copy takes minutes."""


class Partitioning(StrEnum):
    """How the partition of TARGET follows from a record, where it is not one for all."""

    KEEP = "keep"
    KEY = "key"


def parse_partitioning(text: str) -> Partitioning | int:
    """A --to-partition. Raises BadParameter."""
    if text in tuple(Partitioning):
        return Partitioning(text)
    if text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= INT32_MAX:
        return int(text)
    message = f"{text}: write keep, key or the number of a partition"
    raise typer.BadParameter(message, param_hint="--to-partition")


class OtherCluster(NamedTuple):
    """A second cluster, and the client properties for it."""

    bootstrap: str
    properties: ClientProperties

    @classmethod
    def of(
        cls, address: str | None, command_config: Path | None, profile: str | None
    ) -> OtherCluster | None:
        """As the --to- options say; the first of them wins over the second, and that over the
        third. None without any. Raises BadParameter and StartupError.
        """
        from kbroker.cli.profiles.store import read_client_properties, read_profiles
        from kbroker.client.bootstrap_servers import parse_bootstrap

        if address is None and command_config is None and profile is None:
            return None
        pairs = {} if profile is None else read_profiles().profile(profile).pairs()
        pairs |= read_client_properties(command_config)
        if address is not None:
            pairs[BOOTSTRAP_SERVERS] = address
        if BOOTSTRAP_SERVERS not in pairs:
            message = f"no {BOOTSTRAP_SERVERS} for the cluster of TARGET; give --to-bootstrap"
            raise typer.BadParameter(message)
        try:
            parse_bootstrap(pairs[BOOTSTRAP_SERVERS])
        except StartupError as error:
            raise typer.BadParameter(str(error), param_hint="--to-bootstrap") from None
        return cls(pairs[BOOTSTRAP_SERVERS], ClientProperties.checked(pairs))


@dataclass(frozen=True, slots=True)
class ResendDestination:
    """Where records go. properties: None for those of the command."""

    topic: str
    bootstrap: str
    properties: ClientProperties | None
    partitioning: Partitioning | int
    transactional_id: str | None
    compression: Codec | None

    def partition(self, record: ConsumedRecord) -> int | None:
        """Of TARGET; None for the producer's choice by key."""
        if self.partitioning is Partitioning.KEEP:
            return record.partition
        return self.partitioning if isinstance(self.partitioning, int) else None

    def producer_config(self) -> ProducerConfig:
        """The properties, but for what keeps each record from being written twice."""
        from kbroker.client.producer import ACKS_ALL

        given = self.properties or properties()
        config = producer_config(self.compression, None, idempotent=True, given=given)
        config = replace(config, acks=ACKS_ALL, transactional_id=self.transactional_id)
        if given.get(TRANSACTION_TIMEOUT) is None:
            config = replace(config, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        return config


class PlannedRecord(NamedTuple):
    """What is read of one partition. stop: exclusive. records: how many offsets that are, which is
    at least as many as there are records.
    """

    topic: str
    partition: int
    start: int
    stop: int
    records: int


@dataclass(slots=True)
class Copied:
    """What was written of one partition of a source. first_offset, last_offset: there."""

    topic: str
    partition: int
    target: str
    records: int
    first_offset: int
    last_offset: int

    def add(self, offset: int) -> None:
        """One more record. Acknowledgements of several partitions have no order."""
        self.records += 1
        self.first_offset = min(self.first_offset, offset)
        self.last_offset = max(self.last_offset, offset)


CopiedByPartition = dict[TopicPartition, Copied]


@dataclass(frozen=True, slots=True)
class Resending:
    """One run of the command. bootstrap: of the source."""

    bootstrap: str
    wanted: Wanted
    config: ConsumerConfig
    offsets: OffsetRange
    query: Query
    max_messages: int | None
    destination: ResendDestination

    async def plan(self) -> list[PlannedRecord]:
        """What is to be read. Raises StartupError if the target has not the partitions for it."""
        async with connect(self.bootstrap) as client:
            bounds = await self._source(client).bounds(exit_at_end=True)
        planned = [
            PlannedRecord(*place, start, max(stop, start), max(stop - start, 0))
            for place, (start, stop) in bounds.items()
            if stop is not None  # which exit_at_end gives every partition
        ]
        async with connect(self.destination.bootstrap, self.destination.properties) as client:
            await self._check_target(client, planned)
        return planned

    def _source(self, client: Client) -> RecordSource:
        return RecordSource(client, self.config, self.wanted, self.offsets)

    async def _check_target(self, client: Client, planned: Sequence[PlannedRecord]) -> None:
        from kbroker.protocol.errors import ErrorCode, KafkaError

        name, partitioning = self.destination.topic, self.destination.partitioning
        try:
            count = len((await client.topic(name)).partitions)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            most = max((row.partition for row in planned), default=0) + 1
            raise StartupError(
                f"there is no topic {name}; make it first: "
                f"kbroker topics create {name} --partitions {most}"
            ) from None
        needed = [partitioning] if isinstance(partitioning, int) else []
        if partitioning is Partitioning.KEEP:
            needed = [row.partition for row in planned if row.records]
        if needed and max(needed) >= count:
            raise StartupError(
                f"{name} has {counted(count, 'partition')}, and no partition {max(needed)}; "
                f"see --to-partition"
            )

    async def copy(self, plan: Sequence[PlannedRecord], copied: CopiedByPartition) -> None:
        """Write the records of the plan. copied: gets what was written, also if an error ends this;
        of a transaction that was not committed nothing. Raises KafkaError.
        """
        from kbroker.client.producer import Producer

        destination = self.destination
        bounds = {TopicPartition(*row[:2]): Bounds(row.start, row.stop) for row in plan}
        try:
            async with (
                connect(self.bootstrap) as reading,
                connect(destination.bootstrap, destination.properties) as writing,
                Producer(writing, destination.producer_config()) as producer,
            ):
                source = self._source(reading)
                await source.start(bounds)
                await self._send(source, producer, copied)
                source.close()
                await producer.commit()
        except BaseException:
            if destination.transactional_id is not None:
                copied.clear()
            raise

    async def _send(
        self, source: RecordSource, producer: Producer, copied: CopiedByPartition
    ) -> None:
        destination = self.destination
        matching = MatchingRecords(source, self.query, max_messages=self.max_messages)
        with progress(f"records to {destination.topic}", visible=True) as done:
            deliveries = Deliveries(done)
            async for records in matching:
                for record in records:
                    future = await producer.send(
                        destination.topic,
                        record.value,
                        record.key,
                        headers=record.headers,
                        timestamp_ms=record.timestamp,
                        partition=destination.partition(record),
                    )
                    deliveries.watch(future, partial(self._count, copied, record))
                if deliveries.has_failed:
                    break
            await producer.flush()
            deliveries.check()

    def _count(self, copied: CopiedByPartition, record: ConsumedRecord) -> None:
        place = TopicPartition(record.topic, record.partition)
        if place not in copied:
            target = self.destination.topic
            copied[place] = Copied(*place, target, 0, record.offset, record.offset)
        copied[place].add(record.offset)
