"""A replay of `__consumer_offsets`: what counts, and who made it."""

from __future__ import annotations

import itertools

import pytest

from kbroker.protocol.batches.any_magic import iter_any_batches, iter_any_records
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import BatchHeader
from kbroker.protocol.batches.control_records import build_end_transaction_marker
from kbroker.protocol.batches.records import Record
from kbroker.protocol.codecs.codec import encode
from kbroker.protocol.messages.stored.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from spark_jobs.groups_audit.history import Commit, OffsetsReplay, committer
from spark_jobs.groups_audit.records import Member

PRODUCER = 7
BASE_OFFSETS = itertools.count()


def replayed(replay: OffsetsReplay, batch: bytes | bytearray) -> None:
    """Each call is the next batch of the log."""
    batch = bytearray(batch)
    batch[:8] = next(BASE_OFFSETS).to_bytes(8, "big")
    for position, header in iter_any_batches(memoryview(batch)):
        for record in iter_any_records(memoryview(batch)[position:], header):
            replay.apply(header, record)


def commit(
    replay: OffsetsReplay, offset: int | None, *, group: str = "g", producer_id: int = -1
) -> None:
    key = (1).to_bytes(2, "big") + bytes(
        encode(OffsetCommitKey(group=group, topic="t", partition=0), 0)
    )
    body = None
    if offset is not None:
        of = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=100 + offset)
        body = (3).to_bytes(2, "big") + bytes(encode(of, 3))
    is_transactional = producer_id >= 0
    batch = build_batch(
        [(50, key, body, ())],
        producer_id=producer_id,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1,
        is_transactional=is_transactional,
    )
    replayed(replay, batch)


def join(replay: OffsetsReplay, *clients: str) -> None:
    members = [
        GroupMetadataValue.MemberMetadata(
            member_id=name,
            client_id=name,
            client_host="/h",
            session_timeout=1,
            subscription=b"",
            assignment=b"",
        )
        for name in clients
    ]
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol=None, leader=None, members=members
    )
    key = (2).to_bytes(2, "big") + bytes(encode(GroupMetadataKey(group="g"), 0))
    replayed(replay, build_batch([(0, key, (3).to_bytes(2, "big") + bytes(encode(value, 3)), ())]))


def end(replay: OffsetsReplay, *, commit: bool, producer_id: int = PRODUCER) -> None:
    replayed(
        replay,
        build_end_transaction_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
        ),
    )


def test_the_newest_commits_and_their_members() -> None:
    replay = OffsetsReplay(2)
    commit(replay, 1)
    join(replay, "a", "b")
    commit(replay, 2)
    join(replay, "b")
    commit(replay, 3)
    history = replay.histories["g", "t", 0]
    assert (history.count, [one.offset for one in history.newest]) == (3, [2, 3])
    assert [[each.client_id for each in one.members] for one in history.newest] == [
        ["a", "b"],
        ["b"],
    ]
    assert history.newest[0].time_ms == 102
    commit(replay, None)
    assert history.is_deleted
    commit(replay, 4)
    assert not history.is_deleted


def test_offsets_of_transactions_count_once_they_are_committed() -> None:
    replay = OffsetsReplay(5)
    commit(replay, 1, producer_id=PRODUCER)
    assert not replay.histories and replay.open[PRODUCER].first_ms == 50
    end(replay, commit=False)
    assert not replay.histories and not replay.open and replay.aborted == 1
    commit(replay, 2, producer_id=PRODUCER)
    end(replay, commit=True)
    (one,) = replay.histories["g", "t", 0].newest
    assert (one.offset, one.producer_id) == (2, PRODUCER)
    end(replay, commit=True)  # of a transaction without offsets


@pytest.mark.parametrize("points", [1, 2, 3, 9])
def test_a_transaction_that_ends_late_replaces_no_later_commit(points: int) -> None:
    """What counts is the order of the records, not of the markers, as in Kafka."""
    replay = OffsetsReplay(points)
    commit(replay, 5)
    commit(replay, 50, producer_id=PRODUCER)
    commit(replay, 60, producer_id=8)
    commit(replay, 70)
    commit(replay, 80)
    end(replay, commit=True)
    history = replay.histories["g", "t", 0]
    assert [one.offset for one in history.newest] == [5, 50, 70, 80][-points:]
    end(replay, commit=True, producer_id=8)
    assert [one.offset for one in history.newest] == [5, 50, 60, 70, 80][-points:]
    assert (history.count, history.is_deleted) == (5, False)
    commit(replay, 90)
    assert [one.offset for one in history.newest] == [5, 50, 60, 70, 80, 90][-points:]


def test_a_transaction_that_ends_late_restores_no_deleted_offset() -> None:
    replay = OffsetsReplay(5)
    commit(replay, 50, producer_id=PRODUCER)
    commit(replay, None)
    end(replay, commit=True)
    history = replay.histories["g", "t", 0]
    assert history.is_deleted and [one.offset for one in history.newest] == [50]
    commit(replay, 60, producer_id=PRODUCER)
    end(replay, commit=True)
    assert not history.is_deleted


def test_other_groups_and_unreadable_records_are_left_out() -> None:
    replay = OffsetsReplay(5, ["g"])
    commit(replay, 1, group="other")
    header = BatchHeader.__new__(BatchHeader)
    for _, header in iter_any_batches(memoryview(build_batch([(0, b"\x00\x01", b"", ())]))):
        replay.apply(header, Record(0, 0, b"\x00\x01", b"", ()))
    assert not replay.histories and replay.unreadable == 1


def test_who_it_was() -> None:
    a = Member("a", "a", "/1", frozenset({("t", 0)}))
    b = Member("b", "b", "/2", frozenset({("id", 1)}))
    c = Member("c", "c", "/3")

    def said(*members: Member, partition: int = 0, producer_id: int = -1) -> str:
        one = Commit(1, 1, members, producer_id)
        names = {PRODUCER: "tx"}
        return committer(one, "t", partition, topic_id="id", transactional_ids=names)

    assert said(a, b, c) == "a@1"
    assert said(a, b, c, partition=1) == "b@2"
    assert said(a, b, partition=2) == "one of 2 members"
    assert (said(c), said()) == ("c@3", "no member")
    assert said(a, producer_id=PRODUCER) == "transactional id tx"
    assert said(a, producer_id=8) == "producer 8"
