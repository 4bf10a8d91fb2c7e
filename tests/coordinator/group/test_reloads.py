"""After any sequence of requests, timeouts and faults, a coordinator that loads the log of groups
and offsets has the same state as the one that wrote it: from the whole log, from the compacted one,
and from that without tombstones. Sequences by seed, with groups of all types that compete for few
ids, offsets in and outside of transactions, deletions of all kinds, and reloads.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.model import TopicPartition
from kbroker.ports import at_once
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.groups import DeleteGroupsRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetDeleteRequest
from kbroker.protocol.messages.coordinators.share_groups import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
)
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.compacted import compacted
from tests.coordinator.group.commits import commit
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.members import ClientMember
from tests.coordinator.group.offset_transactions import commit_in_transaction, end_transaction
from tests.coordinator.group.share.shares import Shares
from tests.coordinator.group.streams_members import StreamsThread
from tests.coordinator.observed import in_flux, observed
from tests.coordinator.simulation import Context, World

LOG = TopicPartition(GROUP_TOPIC, 0)
SEEDS = range(20)
STEPS = 100
CHECK_EVERY = 8
CUTS = 4
GROUPS = ("a", "b", "c", "d")
TOPICS = ("events", "other", "new")
PRODUCERS = (7, 8, 9)
MEMBERS = 10
FAULTS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
"""Errors of the log. A rejected append is not among them: a classic group then continues without
its record, as in Kafka.
"""

Polling = ClientMember | Consumer | StreamsThread


class ShareMember:
    """A member of a share group."""

    def __init__(self, shares: Shares, member_id: str, group_id: str) -> None:
        self.shares = shares
        self.member_id = member_id
        self.group_id = group_id
        self.epoch = 0

    def poll(self) -> None:
        fields: dict[str, Any] = {"subscribed_topic_names": ["other"]} if not self.epoch else {}
        answer = self.shares.ask(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch, **fields
        )
        self.epoch = answer.member_epoch if answer.error_code == 0 else 0

    def leave(self) -> None:
        if self.epoch:
            self.shares.ask(group_id=self.group_id, member_id=self.member_id, member_epoch=-1)
        self.epoch = 0


class Life:
    """One world and what happens in it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.shares = Shares()
        config = GroupCoordinatorConfig(
            group_initial_rebalance_delay_ms=self.random.choice([0, 3_000]),
            group_consumer_assignment_interval_ms=self.random.choice([0, 1_000]),
            group_streams_initial_rebalance_delay_ms=self.random.choice([0, 3_000]),
            offsets_retention_minutes=60,
        )
        self.shares.take(World(seed=seed, config=config))
        self.world = self.shares.world
        self.groups = GROUPS[: self.random.choice([1, 2, 4])]
        self.members: list[Polling | ShareMember] = []
        self.count = 0

    def run(self) -> None:
        actions: list[tuple[Callable[[], object], int]] = [
            (self.join, 14),
            (self.poll, 40),
            (self.leave, 6),
            (self.crash, 3),
            (self.commit, 10),
            (self.commit_in_transaction, 12),
            (self.end_transaction, 8),
            (self.delete_group, 4),
            (self.delete_offset, 3),
            (self.delete_share_offsets, 2),
            (self.alter_share_offsets, 2),
            (self.change_topics, 3),
            (self.pass_time, 14),
            (self.pass_much_time, 2),
            (self.jump_clock, 1),
            (self.fault, 2),
            (self.slow_log, 3),
            (self.fail_over, 1),
            (self.persister_fault, 2),
            (self.reload, 2),
        ]
        steps, weights = zip(*actions, strict=True)
        for step in range(STEPS):
            self.random.choices(steps, weights)[0]()
            if step % CHECK_EVERY == 0:
                self.check()
        self.check()
        self.check_ends()
        for _ in range(CUTS):
            self.check_cut()

    # -- what happens ------------------------------------------------------------------------

    def any_member(self) -> Polling | ShareMember | None:
        return self.random.choice(self.members) if self.members else None

    def any_offsets(self) -> dict[int, int]:
        return {self.random.randrange(3): self.random.randrange(1_000) for _ in range(2)}

    def any_topic(self) -> str:
        return self.random.choice([name for name in TOPICS if name in self.world.topics.topics])

    def join(self) -> None:
        if len(self.members) >= MEMBERS:
            return
        self.count += 1
        name, group_id = f"m{self.count}", self.random.choice(self.groups)
        instance_id = self.random.choice([None, None, f"i{self.random.randrange(2)}"])
        member: Polling | ShareMember
        match self.random.randrange(5):
            case 0 | 1:
                member = ClientMember(self.world, name, group=group_id, instance_id=instance_id)
            case 2:
                fields: dict[str, Any] = {"group_id": group_id, "instance_id": instance_id}
                if self.random.random() < 0.3:
                    fields |= {"subscribed_topic_names": None, "subscribed_topic_regex": "(ev|n).*"}
                member = Consumer(self.world, name, **fields)
            case 3:
                member = StreamsThread(self.world, name, group_id=group_id)
            case _:
                member = ShareMember(self.shares, name, group_id)
        self.members.append(member)
        member.poll()

    def poll(self) -> None:
        self.world.timers.advance(300)
        for member in self.random.sample(self.members, min(len(self.members), 4)):
            member.poll()

    def leave(self) -> None:
        member = self.any_member()
        if member is None:
            return
        self.members.remove(member)
        try:
            if isinstance(member, Consumer) and member.fields.get("instance_id"):
                member.leave(self.random.choice([-1, -2]))
            elif not isinstance(member, ClientMember) or (member.member_id and not member.joining):
                member.leave()
        except KafkaError:
            pass
        if isinstance(member, ClientMember):
            member.crash()

    def crash(self) -> None:
        member = self.any_member()
        if member is not None:
            self.members.remove(member)
            if isinstance(member, ClientMember):
                member.crash()

    def commit(self) -> None:
        if self.world.log.delayed:
            return
        group_id, topic = self.random.choice(self.groups), self.any_topic()
        commit(self.world, self.any_offsets(), group=group_id, topic=topic)

    def commit_in_transaction(self) -> None:
        if self.world.log.delayed:
            return
        commit_in_transaction(
            self.world,
            self.any_offsets(),
            producer_id=self.random.choice(PRODUCERS),
            group=self.random.choice(self.groups),
            topic=self.any_topic(),
        )

    def end_transaction(self) -> None:
        producer_id = self.random.choice(PRODUCERS)
        end_transaction(self.world, commit=self.random.random() < 0.7, producer_id=producer_id)

    def delete_group(self) -> None:
        group_id = self.random.choice(self.groups)
        request = DeleteGroupsRequest(groups_names=[group_id])
        answer = self.world.coordinator.delete_groups(Context(2), request)
        if answer.done and not answer.value.results[0].error_code:
            assert not self.world.shard().offsets.has_group(group_id)
            assert group_id not in self.listed()

    def delete_offset(self) -> None:
        topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=self.any_topic(),
            partitions=[
                OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index)
                for index in range(2)
            ],
        )
        self.attempt(
            lambda _, request: next(self.world.coordinator.offsets.delete(request), None),
            OffsetDeleteRequest(group_id=self.random.choice(self.groups), topics=[topic]),
        )

    def delete_share_offsets(self) -> None:
        topic = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic(
            topic_name="other"
        )
        self.attempt(
            lambda context, request: at_once(
                self.shares.coordinator.delete_offsets(context, request)
            ),
            DeleteShareGroupOffsetsRequest(
                group_id=self.random.choice(self.groups), topics=[topic]
            ),
        )

    def alter_share_offsets(self) -> None:
        topic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic(
            topic_name="other",
            partitions=[
                AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition(
                    partition_index=1, start_offset=9
                )
            ],
        )
        self.attempt(
            lambda context, asked: at_once(self.shares.coordinator.alter_offsets(context, asked)),
            AlterShareGroupOffsetsRequest(group_id=self.random.choice(self.groups), topics=[topic]),
        )

    def attempt(self, call: Callable[[Any, Any], object], request: object) -> None:
        try:
            call(Context(1), request)
        except KafkaError:
            return

    def change_topics(self) -> None:
        topics = self.world.topics
        if "new" in topics.topics:
            self.world.coordinator.on_topics_deleted([topics.remove("new")])
        else:
            topics.add("new", 3)

    def pass_time(self) -> None:
        self.world.timers.advance(self.random.randrange(5_000))

    def pass_much_time(self) -> None:
        self.world.timers.advance(self.random.choice([50_000, 4_000_000]))

    def jump_clock(self) -> None:
        self.world.timers.jump(self.random)

    def fault(self) -> None:
        self.world.log.errors = [self.random.choice(FAULTS)]

    def slow_log(self) -> None:
        """What is written from now on is committed later, or by the next check."""
        self.world.log.delayed = not self.world.log.delayed
        self.world.log.commit()

    def fail_over(self) -> None:
        """Of what is not committed the next leader has a part."""
        self.world.fail_over(self.random)

    def persister_fault(self) -> None:
        self.shares.persister.errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]

    def reload(self) -> None:
        self.world.resign()
        self.world.lead()

    def listed(self) -> list[str]:
        response = at_once(self.world.coordinator.list_groups())
        return [group.group_id for group in response.groups]

    # -- what must hold ----------------------------------------------------------------------

    def reloads(self, end: int | None = None) -> dict[str, World]:
        """Worlds that load the log. end: after so many batches of it."""
        batches = self.world.log.batches.get(LOG, [])[:end]
        return {
            "whole": self.world.with_log({LOG: batches}),
            "compacted": self.world.with_log({LOG: compacted(batches, keep_tombstones=True)}),
            "no tombstones": self.world.with_log({LOG: compacted(batches, keep_tombstones=False)}),
        }

    def check(self) -> None:
        self.world.log.errors = []
        self.world.log.delayed = False
        self.world.log.commit()
        self.world.timers.advance(0)
        assert len(self.listed()) == len(set(self.listed()))
        flux = in_flux(self.world.shard())
        live = observed(self.world, flux)
        for name, world in self.reloads().items():
            assert observed(world, flux) == live, name

    def check_ends(self) -> None:
        """Transactions that are open end in the same way, and what expires is the same."""
        worlds = self.reloads()
        for producer_id in PRODUCERS:
            commit_it = self.random.random() < 0.7
            for world in worlds.values():
                outcome = end_transaction(world, commit=commit_it, producer_id=producer_id)
                assert outcome.done
        self.check_same(worlds)
        for world in worlds.values():
            world.timers.advance(4 * 3_600_000)
        self.check_same(worlds)

    def check_cut(self) -> None:
        """Whatever batch the log ends with, compaction changes nothing."""
        self.check_same(self.reloads(self.random.randint(0, self.world.log_length())))

    def check_same(self, worlds: dict[str, World]) -> None:
        whole = observed(worlds["whole"])
        for name in ("compacted", "no tombstones"):
            assert observed(worlds[name]) == whole, name


@pytest.mark.parametrize("seed", SEEDS)
def test_a_coordinator_that_loads_the_log_knows_the_same(seed: int) -> None:
    Life(seed).run()


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.timeout(900)
def test_a_coordinator_that_loads_the_log_knows_the_same_many_times() -> None:
    for seed in range(1_000, 2_000):
        try:
            Life(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
