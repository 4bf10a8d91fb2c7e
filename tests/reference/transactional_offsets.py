"""A conversation about offsets that a producer commits for its consumer (TxnOffsetCommit): which
member, generation or epoch may, in groups of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from kbroker.protocol.codecs.schema import Message
from kbroker.protocol.messages.admin.topics import CreateTopicsRequest
from kbroker.protocol.messages.coordinators.groups import FindCoordinatorRequest
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest
from kbroker.protocol.messages.coordinators.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tests.reference.migration import consumer, id_of, join, keep, sync
from tests.reference.step import State, Step

FIRST = "AAAAAAAAAAAAAAAAAAAAAA"
SECOND = "BBBBBBBBBBBBBBBBBBBBBB"
TRANSACTION = "tx"
TRANSACTION_KEY = 1
OVERRIDES = {"group.consumer.assignment.interval.ms": "0"}
SELF_ADDING = 5
"""From this TxnOffsetCommit on the group need not be added to the transaction before."""


def keep_topic_ids(state: State, answer: Any) -> None:
    for topic in answer.topics:
        state.topic_ids[topic.name] = topic.topic_id


def keep_producer(state: State, answer: Any) -> None:
    state.producer_id, state.producer_epoch = answer.producer_id, answer.producer_epoch


def first_steps() -> Iterator[Step]:
    topic = CreateTopicsRequest.CreatableTopic(name="t1", num_partitions=2, replication_factor=1)
    yield Step(
        "create",
        7,
        lambda _: CreateTopicsRequest(topics=[topic], timeout_ms=10_000),
        keep_topic_ids,
    )
    coordinator = FindCoordinatorRequest(key=TRANSACTION, key_type=TRANSACTION_KEY)
    yield Step("find", 3, lambda _: coordinator)
    init = InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=60_000)
    yield Step("producer", 5, lambda _: init, keep_producer)


def commit(
    group: str,
    member: str,
    generation: int,
    *partitions: int,
    instance: str | None = None,
) -> Any:
    partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
        name="t1",
        partitions=[
            partition(partition_index=n, committed_offset=n + 5) for n in partitions or (0, 1)
        ],
    )

    def build(state: State) -> Message:
        return TxnOffsetCommitRequest(
            transactional_id=TRANSACTION,
            group_id=group,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            generation_id=generation,
            member_id=id_of(state, member),
            group_instance_id=instance,
            topics=[topic],
        )

    return build


def add(group: str) -> Any:
    return lambda s: AddOffsetsToTxnRequest(
        transactional_id=TRANSACTION,
        producer_id=s.producer_id,
        producer_epoch=s.producer_epoch,
        group_id=group,
    )


def end(*, committed: bool) -> Any:
    return lambda s: EndTxnRequest(
        transactional_id=TRANSACTION,
        producer_id=s.producer_id,
        producer_epoch=s.producer_epoch,
        committed=committed,
    )


def fetch(group: str, *, stable: bool) -> OffsetFetchRequest:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="t1", partition_indexes=[0, 1])
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[topic])
    return OffsetFetchRequest(groups=[asked], require_stable=stable)


def commits(name: str, *requests: Any) -> Iterator[Step]:
    """Each in the version that finds the group in the transaction, and in the one that adds it."""
    for version in (SELF_ADDING - 1, SELF_ADDING):
        for number, request in zip(count(1), requests, strict=False):
            yield Step(f"{name} {number} v{version}", version, request)


def no_group_steps() -> Iterator[Step]:
    yield Step("no group: not added", 4, commit("tn", "", -1))
    yield Step("no group: added", 3, add("tn"))
    yield from commits(
        "no group: commit",
        commit("tn", "who", 5),
        commit("tn", "", 5),
        commit("tn", "who", -1),
        commit("tn", "", -1, instance="i1"),
        commit("tn", "", -1),
    )


def classic_steps() -> Iterator[Step]:
    yield Step("classic: joins", 3, join("", "tg"), keep("first"))
    yield Step("classic: syncs", 3, sync("first", 1, "tg", 0, 1))
    yield Step("classic: added", 3, add("tg"))
    yield from commits(
        "classic: commit",
        commit("tg", "", -1),
        commit("tg", "first", 1),
        commit("tg", "first", 0),
        commit("tg", "first", 2),
        commit("tg", "first", -1),
        commit("tg", "who", 1),
        commit("tg", "who", -1),
        commit("tg", "first", 1, instance="i1"),
        commit("tg", "", 1),
    )


def consumer_steps() -> Iterator[Step]:
    """The first member has both partitions since epoch 2, and keeps one of them in epoch 3."""
    yield Step("consumer: joins", 1, consumer(0, "tc", [], member_id=FIRST))
    yield Step("consumer: added", 3, add("tc"))
    mine = [(-1, FIRST), (1, FIRST), (2, FIRST), (9, FIRST), (2, SECOND), (-1, SECOND), (2, "")]
    yield from commits(
        "consumer: commit",
        commit("tc", "", -1),
        *(commit("tc", member, epoch) for epoch, member in mine),
        commit("tc", FIRST, 2, instance="i1"),
        commit("tc", "", -1, instance="i1"),
    )
    yield Step("consumer: second", 1, consumer(0, "tc", [], member_id=SECOND))
    yield Step("consumer: told to give back", 1, consumer(2, "tc", [0, 1], member_id=FIRST))
    yield from commits(
        "consumer: commit while giving back",
        *(commit("tc", FIRST, 2, n) for n in (0, 1)),
        *(commit("tc", FIRST, 3, n) for n in (0, 1)),
    )
    yield Step("consumer: has given back", 1, consumer(2, "tc", [0], member_id=FIRST))
    yield from commits(
        "consumer: commit of the former epoch",
        *(commit("tc", FIRST, epoch, n) for epoch in (1, 2, 3) for n in (0, 1)),
        commit("tc", FIRST, 2),
    )


def mixed_steps() -> Iterator[Step]:
    """The classic group above gets a member of the new protocol."""
    yield Step("mixed: joins", 1, consumer(0, "tg", []))
    yield from commits(
        "mixed: commit",
        *(commit("tg", "first", generation) for generation in (0, 1, 2, 9)),
        commit("tg", "", -1),
    )
    yield Step("mixed: joins again", 9, join("first", "tg"))
    yield from commits(
        "mixed: commit after it joined",
        *(commit("tg", "first", generation, n) for generation in (1, 2, 3) for n in (0, 1)),
    )


def end_steps() -> Iterator[Step]:
    for group in ("tn", "tg", "tc"):
        for stable in (False, True):
            yield Step(
                f"offsets of {group}{' if stable' if stable else ''}",
                9,
                lambda _, group=group, stable=stable: fetch(group, stable=stable),
            )
    yield Step("transaction ends", 4, end(committed=True))


def transactional_offset_steps() -> Iterator[Step]:
    """The whole conversation."""
    for part in (
        first_steps,
        no_group_steps,
        classic_steps,
        consumer_steps,
        mixed_steps,
        end_steps,
    ):
        yield from part()
