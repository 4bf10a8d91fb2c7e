"""Loading a coordinator's partition: Kafka's own log, in turns, overtaken, or damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kbroker.coordinator.group.classic.state import GroupState
from kbroker.coordinator.group.service import GROUP_TOPIC
from kbroker.coordinator.group.shard import GroupShard
from kbroker.coordinator.runtime.host import HostStatus
from kbroker.coordinator.runtime.runtime import CoordinatorRuntime
from kbroker.model import InvariantError, TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.batches.batch_builder import build_batch
from kbroker.protocol.batches.batch_header import iter_batches
from kbroker.protocol.batches.compression import Compression
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.coordinators.offsets import OffsetFetchRequest
from kbroker.settings.views.group_coordinator import GroupCoordinatorConfig
from tests.coordinator.group.commits import commit, commit_later, fetch
from tests.coordinator.group.members import ClientMember, settle
from tests.coordinator.simulation import FakeTopics, MemoryLog, World
from tests.sim.timers import SimTimer, SimTimers

E = ErrorCode
PARTITION = TopicPartition(GROUP_TOPIC, 0)
LOG = Path(__file__).parents[2] / "data" / "coordinator" / "consumer_offsets.log"


def kafka_log() -> MemoryLog:
    log = MemoryLog()
    data = LOG.read_bytes()
    log.batches[PARTITION] = [
        data[position : position + header.size_bytes] for position, header in iter_batches(data)
    ]
    return log


def test_kafkas_log_is_loaded_as_kafka_understands_it() -> None:
    timers = SimTimers()
    runtime = CoordinatorRuntime(
        GROUP_TOPIC,
        log=kafka_log(),
        timers=timers,
        make_shard=lambda: GroupShard(
            GroupCoordinatorConfig(), Random(1), timers.now_ms, FakeTopics
        ),
        load_step_bytes=200,
    )
    runtime.on_leadership(0, 4)
    with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        runtime.host(0)
    timers.advance(0)
    shard = runtime.host(0).shard
    offsets = {
        (group, topic, partition): (value.offset, value.metadata)
        for group in shard.offsets.groups()
        for topic, partitions in shard.offsets.of_group(group).items()
        for partition, value in partitions.items()
    }
    assert offsets == {
        ("group-txn", "codec-none", 0): (7, "in txn"),  # 9 was aborted
        ("group-classic", "codec-none", 0): (62, ""),
        ("group-classic", "parts", 0): (2, "some metadata"),
        ("group-classic", "parts", 1): (0, ""),
        ("group-classic", "parts", 2): (5, ""),
        ("group-classic-dynamic", "codec-gzip", 0): (31, ""),
        ("group-consumer", "codec-lz4", 0): (31, ""),
        ("group-consumer", "codec-zstd", 0): (31, ""),
        ("group-simple", "segments", 0): (150, ""),
        ("group-rdk", "codec-snappy", 0): (17, ""),
    }
    states = {
        group.group_id: (group.state, group.generation_id)
        for group in shard.classic.groups.values()
    }
    assert states["group-classic"] == (GroupState.STABLE, 1)
    assert states["group-classic-dynamic"] == (GroupState.EMPTY, 2)
    assert states["group-rdk"] == (GroupState.EMPTY, 2)
    assert "group-deleted" not in states
    consumer_group = shard.consumer.groups["group-consumer"]
    assert (consumer_group.state(), consumer_group.epoch) == ("Empty", 3)
    assert (consumer_group.target_epoch, consumer_group.regexes) == (2, {})
    assert "group-consumer" not in states  # its offsets are the consumer group's
    (member,) = shard.classic.groups["group-classic"].members.values()
    assert (member.instance_id, member.client_host) == ("static-1", "/127.0.0.1")


def test_a_turn_of_the_load_replays_a_bounded_number_of_unpacked_bytes() -> None:
    """Batches of a few hundred bytes may unpack to far more than a turn reads."""
    size, count, step = 100_000, 8, 1 << 18
    log = MemoryLog()
    log.batches[PARTITION] = [
        bytes(
            build_batch(
                [(0, b"unknown key", bytes(size), [])],
                base_offset=offset,
                compression=Compression.ZSTD,
            )
        )
        for offset in range(count)
    ]
    assert sum(map(len, log.batches[PARTITION])) < step, "all are read at once"
    timers = SimTimers()
    decoded: list[int] = []

    class Shard(GroupShard):
        def decode(self, key: bytes | None, value: bytes | None) -> None:
            decoded.append(len(value or b""))

    runtime = CoordinatorRuntime(
        GROUP_TOPIC,
        log=log,
        timers=timers,
        make_shard=lambda: Shard(GroupCoordinatorConfig(), Random(1), timers.now_ms, FakeTopics),
        load_step_bytes=step,
    )
    turns: list[int] = []
    later = timers.call_later

    def call_later(delay_ms: float, callback: Callable[[], None]) -> SimTimer:
        def turn() -> None:
            before = len(decoded)
            callback()
            turns.append(sum(decoded[before:]))

        return later(delay_ms, turn)

    timers.call_later = call_later  # type: ignore[method-assign]  # counted
    runtime.on_leadership(0, 4)
    timers.advance(0)
    assert runtime.host(0).status is HostStatus.ACTIVE
    assert sum(turns) == size * count
    assert max(turns) < step + size


def test_a_small_load_buffer_loads_in_smaller_turns() -> None:
    sizes = []
    world = World(config=GroupCoordinatorConfig(offsets_load_buffer_size=1_000))
    member = ClientMember(world, "a")
    member.join()
    settle(world, [member])
    world.resign()
    read = world.log.read

    def watched(topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        sizes.append(max_bytes)
        return read(topic_partition, offset, max_bytes)

    world.log.read = watched  # type: ignore[method-assign]  # counted
    world.lead()
    assert set(sizes) == {1_000}
    assert member.heartbeat() is ErrorCode.NONE


def test_a_load_that_is_overtaken_by_newer_epochs() -> None:
    """Its steps come to nothing, and older epochs no longer count."""
    world = World()
    commit(world, {0: 1})
    runtime = world.coordinator.runtime
    world.resign()
    runtime.on_leadership(0, 5)
    runtime.on_leadership(0, 7)  # the same leader, while it loads
    (host,) = runtime.hosts()
    assert (host.epoch, host.status) == (7, HostStatus.LOADING)
    runtime.on_leadership(0, None)
    runtime.on_leadership(0, 9)
    (successor,) = runtime.hosts()
    world.timers.advance(0)
    assert (host.status, host.record_count) == (HostStatus.CLOSED, 0)
    assert (successor.epoch, successor.status) == (9, HostStatus.ACTIVE)
    runtime.on_leadership(0, 8)
    assert (successor.epoch, successor.status) == (9, HostStatus.ACTIVE)
    assert fetch(world, 0) == {0: (1, "")}


def test_the_tail_of_a_load_is_shown_when_it_is_committed() -> None:
    world = World()
    commit(world, {0: 1})
    lost = commit_later(world, 2)
    world.resign()
    assert lost.value.topics[0].partitions[0].error_code == E.NOT_COORDINATOR
    world.lead()
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    steps = world.coordinator.offsets.fetch(
        OffsetFetchRequest(groups=[wanted]), 8, lambda count: True
    )
    reading = world.answer(steps)
    assert isinstance(reading, Deferred)
    assert not reading.done
    world.log.commit()
    assert reading.value.groups[0].topics[0].partitions[0].committed_offset == 2


def test_log_that_cannot_be_read() -> None:
    world = World()
    world.resign()

    def broken(topic_partition: TopicPartition, offset: int, max_bytes: int) -> bytes:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    reading, world.log.read = world.log.read, broken  # type: ignore[method-assign]  # a fault
    world.lead()
    assert [host.status for host in world.coordinator.runtime.hosts()] == [HostStatus.FAILED]
    assert commit(world, {0: 1}) == {0: ErrorCode.NOT_COORDINATOR}
    world.log.read = reading  # type: ignore[method-assign]  # the fault is over
    world.lead()
    assert commit(world, {0: 1}) == {0: ErrorCode.NONE}


@pytest.mark.parametrize("part", ["decode", "replay", "on_loaded"])
def test_a_surprise_in_a_load_ends_with_the_next_leader_epoch(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    commit(world, {0: 1})
    world.resign()

    def fail(*_: object) -> None:
        raise IndexError("list index out of range")

    with monkeypatch.context() as patch:
        patch.setattr(GroupShard, part, fail)
        world.lead()
    assert [host.status for host in world.coordinator.runtime.hosts()] == [HostStatus.FAILED]
    assert commit(world, {0: 5}) == {0: ErrorCode.NOT_COORDINATOR}
    (line,) = [each for each in caplog.records if "failed to load" in each.getMessage()]
    assert line.exc_info is not None and line.exc_info[0] is IndexError
    world.lead()
    assert fetch(world, 0) == {0: (1, "")}
    assert commit(world, {0: 5}) == {0: ErrorCode.NONE}


def test_a_broken_invariant_in_a_load_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    commit(world, {0: 1})
    world.resign()

    def fail(*_: object) -> None:
        raise InvariantError("two members of one name")

    monkeypatch.setattr(GroupShard, "replay", fail)
    with pytest.raises(InvariantError, match="two members"):
        world.lead()


def test_corrupt_record_is_skipped_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    from kbroker.protocol.batches.batch_builder import build_batch

    world = World()
    commit(world, {0: 1})
    bad = build_batch([(1, b"\0\2", b"x", ())], base_offset=1)
    world.log.batches[PARTITION].append(bytes(bad))
    world.resign()
    world.lead()
    assert fetch(world, 0) == {0: (1, "")}
    assert "offset 1 skipped" in caplog.text
