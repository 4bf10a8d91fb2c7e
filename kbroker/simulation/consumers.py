"""Simulated consumers: members of a group that commit their offsets, and readers without a group.
They read to the end after the writers have stopped; the run cancels them then.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kbroker.client.cluster import READ_COMMITTED, READ_UNCOMMITTED
from kbroker.client.consumer import ConsumedRecord, Consumer, ConsumerConfig
from kbroker.client.group import GroupConfig, GroupConsumer
from kbroker.model import StartupError, TopicPartition
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.simulation.producers import fetch_committed
from kbroker.simulation.workload import EVENTS, LEDGER, PARTITIONS, RETRY_S, Workload
from kbroker.testing.history.operations import OffsetCommit, ReadRecord

GROUP_SETTINGS: Final = GroupConfig(
    session_timeout_ms=6_000,
    rebalance_timeout_ms=8_000,
    heartbeat_interval_ms=1_000,
    auto_offset_reset="earliest",
    auto_commit=False,
    consumer=ConsumerConfig(isolation_level=READ_COMMITTED, auto_offset_reset="earliest"),
)


class Reads:
    """The records that one reader has read. latest: the last offset by partition."""

    def __init__(
        self, workload: Workload, name: str, *, committed_only: bool, group: str | None = None
    ) -> None:
        self.name = name
        self.group = group
        self.session = 0
        self.latest: dict[TopicPartition, int] = {}
        self._workload = workload
        self._committed_only = committed_only

    def take(self, records: list[ConsumedRecord]) -> None:
        """Add records that were read in the current session."""
        for record in records:
            place = TopicPartition(record.topic, record.partition)
            self.latest[place] = record.offset
            self._workload.history.reads.append(
                ReadRecord(
                    self.name,
                    self.session,
                    place,
                    record.offset,
                    record.value or b"",
                    self._committed_only,
                    self.group,
                )
            )
        self._workload.counts["records read"] += len(records)


class Member:
    """A member of a group that reads `events`; rejoins as a new member after an error."""

    def __init__(self, workload: Workload, name: str, group: str) -> None:
        self.reads = Reads(workload, name, committed_only=True, group=group)
        self._workload = workload
        self._name = name
        self._group = group

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                async with (
                    self._workload.client(self._name) as client,
                    GroupConsumer(client, self._group, [EVENTS], GROUP_SETTINGS) as member,
                ):
                    await self._read(member)
            except (KafkaError, StartupError) as error:
                self._workload.note(f"{self._name} joins anew: {error}")
                await asyncio.sleep(RETRY_S)

    async def _read(self, member: GroupConsumer) -> None:
        join_count = 0
        while True:
            records = await member.poll()
            if member.join_count != join_count:
                join_count = member.join_count
                self.reads.session += 1
                await fetch_committed(self._workload, self._group, member.assignment)
            self.reads.take(records)
            if records:
                await self._commit(member)

    async def _commit(self, member: GroupConsumer) -> None:
        history, workload = self._workload.history, self._workload
        began_ms = workload.now_ms()
        commits = [
            OffsetCommit(self._group, place, offset, began_ms)
            for place, offset in member.consumer.positions.items()
        ]
        history.commits += commits
        try:
            await member.commit()
        except KafkaError as error:
            workload.note(f"{self._name} does not commit: {error}")
            return
        for commit in commits:
            commit.ended_ms = workload.now_ms()
        workload.counts["commits"] += 1


class Reader:
    """Reads both topics from the beginning, without a group."""

    def __init__(self, workload: Workload, name: str, *, committed_only: bool) -> None:
        self.reads = Reads(workload, name, committed_only=committed_only)
        self._workload = workload
        self._name = name
        self._isolation_level = READ_COMMITTED if committed_only else READ_UNCOMMITTED

    async def run(self) -> None:
        """Run until cancelled."""
        places = [
            TopicPartition(topic, index)
            for topic in (EVENTS, LEDGER)
            for index in range(PARTITIONS)
        ]
        positions = dict.fromkeys(places, 0)
        config = ConsumerConfig(isolation_level=self._isolation_level, auto_offset_reset="none")
        while True:
            try:
                async with self._workload.client(self._name) as client:
                    consumer = Consumer(client, config)
                    consumer.positions.update(positions)
                    while True:
                        self.reads.take(await consumer.poll())
                        positions.update(consumer.positions)
            except (KafkaError, StartupError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._workload.violated(f"{self._name}: {error}")
                    return
                self._workload.note(f"{self._name} connects anew: {error}")
                await asyncio.sleep(RETRY_S)
