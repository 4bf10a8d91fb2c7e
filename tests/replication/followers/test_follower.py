"""The core of the followers of one leader: what it asks for, its reactions to each answer, and
every truncation that Kafka's own AbstractFetcherThread decided on (tests/data/decisions).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.messages.list_offsets import ListOffsetsResponse
from kbroker.replication.divergence import truncation
from kbroker.replication.followers.followed_partition import (
    AppendFetched,
    FollowState,
    SendFetch,
    StartOverAt,
    TruncateTo,
)
from kbroker.replication.followers.follower import (
    CHANGE_PATIENCE_MS,
    EARLIEST_TIMESTAMP,
    HELD_BACK_MS,
    LATEST_TIMESTAMP,
)
from kbroker.replication.throttle import EVERY_PARTITION, UNLIMITED
from tests.decisions import Case, cases
from tests.replication.follower_world import (
    BACKOFF_MS,
    BROKER_EPOCH,
    NODE_ID,
    SESSION_ID,
    TOPIC_ID,
    FollowerWorld,
    failed_count,
    fetched,
    key_of,
)


@pytest.fixture
def world(tmp_path: Path) -> FollowerWorld:
    return FollowerWorld(tmp_path)


# -- Kafka's decisions ----------------------------------------------------------------------------

TRUNCATIONS = cases("follower-truncation")


def log_of(case: Case, world: FollowerWorld) -> None:
    """The follower of a case: an empty log up to its end, with its leader epochs."""
    log = world.host(epoch=99)
    log.log_end_offset = case["follower"]["logEndOffset"]
    for epoch, start in case["follower"]["epochs"]:
        log.leader_epochs.assign(epoch, start)


def test_diverging_logs_are_cut_where_kafka_cuts_them(tmp_path: Path) -> None:
    wrong, count = [], 0
    for number, case in TRUNCATIONS:
        if case["kind"] != "diverging" or case["truncation"] is None:
            continue
        count += 1
        world = FollowerWorld(tmp_path)
        log_of(case, world)
        log = world.logs[0]
        epoch, end_offset = case["leaderSays"]
        cut = truncation(log, epoch, end_offset)  # type: ignore[arg-type]  # as much as is asked for
        log.truncate_to(cut.offset)
        found = {"offset": cut.offset, "truncationCompleted": cut.is_complete}
        epochs = [list(each) for each in log.leader_epochs.entries]
        if (found, epochs) != (case["truncation"], case["epochsAfter"]):
            wrong.append((number, found, epochs))
    assert count == 1402
    assert not wrong, wrong[:5]


def test_followers_that_are_out_of_range_go_on_where_kafkas_do(tmp_path: Path) -> None:
    wrong, count = [], 0
    for number, case in TRUNCATIONS:
        if case["kind"] != "OFFSET_OUT_OF_RANGE":
            continue
        count += 1
        world = FollowerWorld(tmp_path)
        log_of(case, world)
        world.followed().is_started = True  # whatever its epochs are
        world.followed().fetch_offset = case["follower"]["logEndOffset"]
        world.fetch()
        world.answer(fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
        world.list_offsets()
        world.answer_offsets(case["leader"]["logEndOffset"])
        if world.followed().state is FollowState.OUT_OF_RANGE:
            world.list_offsets()
            world.answer_offsets(case["leader"]["logStartOffset"])
        did = [
            ["truncate", each.offset, True]
            if isinstance(each, TruncateTo)
            else ["truncateFullyAndStartAt", each.offset]
            for each in world.done
            if isinstance(each, TruncateTo | StartOverAt)
        ]
        followed = world.followed()
        outcome = did, followed.fetch_offset, followed.lag, followed.state.name
        if outcome != tuple(case[each] for each in ("did", "fetchOffset", "lag", "state")):
            wrong.append((number, outcome))
    assert count == 526
    assert not wrong, wrong[:5]


def test_a_leader_that_does_not_know_the_epoch_answers_out_of_range() -> None:
    """Kafka has no truncation for it: the leader's log end and start decide."""
    unknown = [case for _, case in TRUNCATIONS if case.get("truncation", 0) is None]
    assert len(unknown) == 72
    assert all(case["leaderSays"] == [-1, -1] for case in unknown)


# -- what is asked for ----------------------------------------------------------------------------


def test_the_first_fetch_names_every_partition(world: FollowerWorld) -> None:
    world.host(0, batches=[(1, 3), (4, 2)])
    world.host(1)
    request = world.fetch()
    assert (request.session_id, request.session_epoch) == (0, 0)
    assert request.replica_state.replica_id == NODE_ID
    assert request.replica_state.replica_epoch == BROKER_EPOCH
    (topic,) = request.topics
    assert topic.topic_id == TOPIC_ID
    first, second = topic.partitions
    assert (first.partition, first.fetch_offset, first.last_fetched_epoch) == (0, 5, 4)
    assert (second.partition, second.fetch_offset, second.last_fetched_epoch) == (1, 0, -1)
    assert {first.current_leader_epoch, second.current_leader_epoch} == {5}
    assert not world.poll(), "one request in flight"


def test_an_idle_follower_of_1000_partitions_costs_one_empty_fetch(world: FollowerWorld) -> None:
    for index in range(1_000):
        world.host(index)
    assert len(world.fetch().topics[0].partitions) == 1_000
    world.answer(*(fetched(index) for index in range(1_000)))
    for epoch in (1, 2):
        request = world.fetch()
        assert (request.session_id, request.session_epoch) == (SESSION_ID, epoch)
        assert not request.topics and not request.forgotten_topics_data
        assert not world.answer()
    request = world.fetch()
    world.answer(fetched(7, records=b"\x05\x03", high_watermark=1))
    (partition,) = world.fetch().topics[0].partitions
    assert (partition.partition, partition.fetch_offset, partition.last_fetched_epoch) == (7, 3, 5)


def test_records_are_appended_with_the_leaders_high_watermark(world: FollowerWorld) -> None:
    log = world.host()
    world.fetch()
    world.answer(fetched(records=b"\x05\x03\x05\x02", high_watermark=4))
    assert log.log_end_offset == 5
    assert world.partitions[0].high_watermark == 4
    assert world.followed().lag == 0
    world.fetch()
    world.answer(fetched(high_watermark=9))
    assert world.partitions[0].high_watermark == 5, "no further than the own log"
    assert world.followed().lag == 4
    world.fetch()
    world.answer(fetched(high_watermark=1))
    assert world.partitions[0].high_watermark == 5, "never backwards"


def test_a_partition_that_is_no_longer_followed_leaves_the_session(world: FollowerWorld) -> None:
    for index in range(2):
        world.host(index)
    world.fetch()
    world.answer(fetched(0), fetched(1))
    world.follower.unfollow(key_of(1))
    request = world.fetch()
    assert not request.topics
    (forgotten,) = request.forgotten_topics_data
    assert (forgotten.topic_id, forgotten.partitions) == (TOPIC_ID, [1])
    world.answer()
    world.follower.unfollow(key_of(0))
    assert world.fetch().forgotten_topics_data[0].partitions == [0]
    world.answer(session_id=0)
    assert not world.poll(), "there is nothing to fetch"
    world.host(3)
    assert world.fetch().session_epoch == 0


def test_an_answer_for_another_epoch_or_offset_does_not_count(world: FollowerWorld) -> None:
    log = world.host()
    world.fetch()
    world.lead(epoch=6)
    assert not world.answer(fetched(records=b"\x05\x03"))
    assert log.log_end_offset == 0
    (partition,) = world.fetch().topics[0].partitions
    assert partition.current_leader_epoch == 6
    assert world.answer(fetched(records=b"\x06\x03"))
    assert log.log_end_offset == 3


def test_the_same_epoch_again_changes_nothing(world: FollowerWorld) -> None:
    world.host()
    world.fetch()
    world.lead(epoch=5)
    assert world.answer(fetched(records=b"\x05\x03"))


def test_log_starts_that_move_are_told(world: FollowerWorld) -> None:
    log = world.host(batches=[(1, 3)])
    world.fetch()
    world.answer(fetched())
    log.log_start_offset = 2
    world.follower.log_start_moved(key_of())
    assert world.fetch().topics[0].partitions[0].log_start_offset == 2


# -- truncation -----------------------------------------------------------------------------------


def test_a_diverging_answer_cuts_the_log_and_applies_no_high_watermark(
    world: FollowerWorld,
) -> None:
    """KAFKA-14704: its high watermark may lie beyond what is left of this log."""
    log = world.host(batches=[(1, 3), (2, 4), (4, 2)], high_watermark=3)
    world.fetch()
    world.answer(fetched(diverging=(3, 6), high_watermark=9, log_start_offset=4))
    assert log.log_end_offset == 7, "epoch 3 is unknown here, so the log is cut where 4 began"
    assert world.partitions[0].high_watermark == 3
    assert log.log_start_offset == 0
    (partition,) = world.fetch().topics[0].partitions
    assert (partition.fetch_offset, partition.last_fetched_epoch) == (7, 2)


def test_truncation_below_the_high_watermark_moves_that_too(world: FollowerWorld) -> None:
    """After an unclean election."""
    world.host(batches=[(1, 3), (2, 4)], high_watermark=7)
    world.fetch()
    world.answer(fetched(diverging=(1, 2), high_watermark=2))
    assert world.logs[0].log_end_offset == 0, "a batch that contains the offset goes as a whole"
    assert world.partitions[0].high_watermark == 0


def test_without_leader_epochs_the_log_is_cut_at_the_high_watermark(world: FollowerWorld) -> None:
    log = world.host(batches=[(1, 2), (1, 3)], high_watermark=2)
    log.leader_epochs.truncate_from_end(0)
    (partition,) = world.fetch().topics[0].partitions
    assert (partition.fetch_offset, partition.last_fetched_epoch) == (2, -1)
    assert world.done[0].offset == 2  # type: ignore[union-attr]  # a TruncateTo


def test_a_first_truncation_that_could_not_be_done_is_tried_again(world: FollowerWorld) -> None:
    log = world.host(batches=[(1, 2), (1, 3)], high_watermark=2)
    log.leader_epochs.truncate_from_end(0)
    (cut,) = world.follower.poll(world.now_ms)
    assert isinstance(cut, TruncateTo)
    world.follower.change_refused(cut.followed, world.now_ms)
    assert not world.poll()
    world.now_ms += BACKOFF_MS
    assert world.fetch().topics[0].partitions[0].fetch_offset == 2


def test_out_of_range_below_the_leaders_log_begins_anew_at_its_start(world: FollowerWorld) -> None:
    log = world.host(batches=[(1, 3)], high_watermark=3)
    world.fetch()
    world.answer(fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    request = world.list_offsets()
    assert request.replica_id == NODE_ID
    (asked,) = request.topics[0].partitions
    assert (asked.timestamp, asked.current_leader_epoch) == (LATEST_TIMESTAMP, 5)
    world.answer_offsets(20)
    assert world.list_offsets().topics[0].partitions[0].timestamp == EARLIEST_TIMESTAMP
    world.answer_offsets(12)
    assert (log.log_start_offset, log.log_end_offset) == (12, 12)
    assert world.partitions[0].high_watermark == 12
    request_after = world.fetch()
    assert request_after.topics[0].partitions[0].fetch_offset == 12


@pytest.mark.parametrize("stage", ["end", "start"])
@pytest.mark.parametrize(
    ("error", "state", "is_delayed"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, FollowState.FAILED, False),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, FollowState.FETCHING, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, FollowState.FETCHING, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, FollowState.FETCHING, True),
    ],
)
def test_errors_of_list_offsets(
    world: FollowerWorld, stage: str, error: ErrorCode, state: FollowState, is_delayed: bool
) -> None:
    world.host()
    world.fetch()
    world.answer(fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    world.list_offsets()
    if stage == "start":
        world.answer_offsets(20)
        world.list_offsets()
    world.answer_offsets(-1, error)
    followed = world.followed()
    assert (followed.state, followed.is_delayed) == (state, is_delayed)


def test_a_partition_that_the_list_offsets_answer_lacks_waits(world: FollowerWorld) -> None:
    world.host()
    world.fetch()
    world.answer(fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    world.list_offsets()
    world.follower.offsets_answered(ListOffsetsResponse(topics=[]), world.now_ms)
    assert world.followed().is_delayed


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_after_these_errors_a_partition_waits_out_of_the_session(
    world: FollowerWorld, error: ErrorCode
) -> None:
    for index in range(2):
        world.host(index)
    world.fetch()
    world.answer(fetched(0, error=error), fetched(1))
    assert not world.failed
    request = world.fetch()
    assert not request.topics
    assert request.forgotten_topics_data[0].partitions == [0]
    world.now_ms += BACKOFF_MS - 1
    world.answer()
    assert not world.fetch().topics
    world.now_ms += 1
    world.answer()
    assert [each.partition for each in world.fetch().topics[0].partitions] == [0]


def test_a_throttled_partition_that_lags_is_left_alone_above_the_rate(
    world: FollowerWorld,
) -> None:
    for index in range(2):
        world.host(index)
    world.throttle.limit(1)
    world.throttle.mark("t", frozenset({0}))
    world.fetch()
    world.answer(fetched(0, records=b"\x05\x03", high_watermark=9), fetched(1))
    request = world.fetch()
    assert not request.topics
    assert request.forgotten_topics_data[0].partitions == [0]
    world.answer()
    world.fetch()
    world.now_ms += HELD_BACK_MS
    world.answer()
    assert not world.fetch().topics, "2 bytes in the first second are too many"
    world.now_ms += 2_000
    world.answer()
    (topic,) = world.fetch().topics
    assert [each.partition for each in topic.partitions] == [0]
    world.answer(fetched(0, records=b"\x05\x06", high_watermark=9))
    assert world.followed().lag == 0
    assert [each.fetch_offset for each in world.fetch().topics[0].partitions] == [9], "in sync"


def test_throttled_partitions_alone_are_asked_for_again_in_time(world: FollowerWorld) -> None:
    world.host()
    world.throttle.limit(0)
    world.throttle.mark("t", EVERY_PARTITION)
    world.fetch()
    world.answer(fetched(records=b"\x05\x03", high_watermark=9), session_id=0)
    assert not world.poll()
    assert world.follower.next_deadline_ms() == HELD_BACK_MS
    world.throttle.limit(UNLIMITED)
    world.now_ms = HELD_BACK_MS
    assert [each.partition for each in world.fetch().topics[0].partitions] == [0]


def test_a_deadline_is_only_known_while_nothing_is_in_flight(world: FollowerWorld) -> None:
    world.host()
    world.fetch()
    world.answer(fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert world.follower.next_deadline_ms() == BACKOFF_MS
    (effect,) = world.poll()
    assert isinstance(effect, SendFetch), "the leader forgets the partition"
    assert world.follower.next_deadline_ms() is None
    world.answer(session_id=0)
    assert not world.poll()
    assert world.follower.next_deadline_ms() == BACKOFF_MS


def test_a_fenced_partition_fails_until_a_newer_epoch(world: FollowerWorld) -> None:
    for index in range(2):
        world.host(index)
    world.fetch()
    world.answer(fetched(0, error=ErrorCode.FENCED_LEADER_EPOCH), fetched(1))
    assert world.failed == ["fenced in leader epoch 5"]
    assert failed_count(world.follower) == 1
    assert world.fetch().forgotten_topics_data[0].partitions == [0]
    world.answer()
    world.lead(0, epoch=6)
    assert failed_count(world.follower) == 0
    (partition,) = world.fetch().topics[0].partitions
    assert (partition.partition, partition.current_leader_epoch) == (0, 6)


def test_a_log_that_moved_by_itself_fails(world: FollowerWorld) -> None:
    log = world.host()
    world.fetch()
    log.append(5, 1)
    world.answer(fetched(records=b"\x05\x01"))
    assert world.failed == ["fetched from 0, the log ends at 1"]


def test_no_answer_makes_all_wait_and_begins_a_new_session(world: FollowerWorld) -> None:
    for index in range(2):
        world.host(index)
    world.fetch()
    world.answer(fetched(0), fetched(1))
    world.fetch()
    world.follower.request_failed(world.now_ms)
    assert not world.poll()
    assert world.follower.next_deadline_ms() == BACKOFF_MS
    world.now_ms += BACKOFF_MS
    request = world.fetch()
    assert (request.session_id, request.session_epoch) == (SESSION_ID, 0), "the old one is closed"
    assert len(request.topics[0].partitions) == 2


def test_no_answer_to_list_offsets(world: FollowerWorld) -> None:
    world.host()
    world.fetch()
    world.answer(fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE))
    world.list_offsets()
    world.follower.request_failed(world.now_ms)
    assert world.followed().state is FollowState.FETCHING
    assert world.followed().is_delayed


def test_corrupt_records_are_fetched_again(world: FollowerWorld) -> None:
    world.host()
    world.fetch()
    (append,) = world.follower.fetch_answered(_response(b"\x05\x01"), world.now_ms)
    assert isinstance(append, AppendFetched)
    assert not world.poll(), "a change of the log is under way"
    world.follower.change_refused(append.followed, world.now_ms)
    assert world.followed().is_delayed
    assert world.fetch().forgotten_topics_data
    world.answer(session_id=0)
    world.now_ms += BACKOFF_MS
    assert world.fetch().topics[0].partitions[0].fetch_offset == 0


def test_what_was_appended_before_corrupt_records_stays(world: FollowerWorld) -> None:
    log = world.host()
    world.fetch()
    (append,) = world.follower.fetch_answered(_response(b"\x05\x01"), world.now_ms)
    assert isinstance(append, AppendFetched)
    log.append(5, 3)
    world.follower.change_refused(append.followed, world.now_ms)
    world.fetch()
    world.answer(session_id=0)
    world.now_ms += BACKOFF_MS
    assert world.fetch().topics[0].partitions[0].fetch_offset == 3


def test_a_change_that_takes_long_leaves_the_others_to_be_fetched(world: FollowerWorld) -> None:
    for index in range(2):
        world.host(index)
    world.fetch()
    effects = world.follower.fetch_answered(_response(b"\x05\x01", 2), world.now_ms)
    first, second = (each for each in effects if isinstance(each, AppendFetched))
    world.now_ms = CHANGE_PATIENCE_MS - 1
    world.carry_out([second])
    assert not world.poll()
    assert world.follower.next_deadline_ms() == CHANGE_PATIENCE_MS
    world.now_ms = CHANGE_PATIENCE_MS
    request = world.fetch()
    assert [each.partition for each in request.topics[0].partitions] == [1]
    assert request.forgotten_topics_data[0].partitions == [0]
    world.answer()
    world.carry_out([first])
    assert [each.partition for each in world.fetch().topics[0].partitions] == [0]


def test_a_change_that_takes_long_is_not_asked_about_without_pause(world: FollowerWorld) -> None:
    world.host()
    world.fetch()
    (append,) = world.follower.fetch_answered(_response(b"\x05\x01"), world.now_ms)
    assert isinstance(append, AppendFetched)
    assert not world.poll()
    world.now_ms = CHANGE_PATIENCE_MS
    assert world.fetch().forgotten_topics_data, "the leader is told that nothing is fetched"
    world.answer()
    assert not world.poll()
    assert world.follower.next_deadline_ms() is None
    world.carry_out([append])
    assert world.fetch().topics


def test_the_next_request_waits_for_all_of_an_answer(world: FollowerWorld) -> None:
    for index in range(2):
        world.host(index)
    world.fetch()
    effects = world.follower.fetch_answered(_response(b"\x05\x01", 2), world.now_ms)
    world.carry_out([next(effects)])
    assert not world.poll()
    world.follower.unfollow(key_of(1))
    assert not list(effects), "it is not followed any more"
    assert world.fetch()


def test_a_failed_log_does_not_hold_up_the_others(world: FollowerWorld) -> None:
    for index in range(2):
        world.host(index)
    world.fetch()
    effects = world.follower.fetch_answered(_response(b"\x05\x01", 2), world.now_ms)
    first, second = (each for each in effects if isinstance(each, AppendFetched))
    (failure,) = world.follower.change_failed(first.followed, "the disk")
    assert failure.reason == "the disk"  # type: ignore[union-attr]  # a ReportFailed
    world.carry_out([second])
    (partition,) = world.fetch().topics[0].partitions
    assert (partition.partition, partition.fetch_offset) == (1, 1)


def test_a_change_of_a_partition_that_is_no_longer_followed_ends_quietly(
    world: FollowerWorld,
) -> None:
    world.host()
    world.fetch()
    (append,) = world.follower.fetch_answered(_response(b"\x05\x01"), world.now_ms)
    assert isinstance(append, AppendFetched)
    world.follower.unfollow(key_of())
    assert not world.poll()
    assert world.follower.change_failed(append.followed, "the disk") == []
    assert len(world.follower) == 0
    world.follower.unfollow(key_of())


def test_a_session_that_the_leader_does_not_know_begins_anew_at_once(world: FollowerWorld) -> None:
    world.host()
    world.fetch()
    world.answer(fetched())
    world.fetch()
    world.answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert world.fetch().session_epoch == 0
    world.answer(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert not world.poll(), "it was a full request: the next one waits"


def _response(records: bytes, count: int = 1) -> FetchResponse:
    topic = FetchResponse.FetchableTopicResponse(
        topic_id=TOPIC_ID, partitions=[fetched(index, records=records) for index in range(count)]
    )
    return FetchResponse(session_id=SESSION_ID, responses=[topic])
