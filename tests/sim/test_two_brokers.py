"""Controller, partitions and group shards of two brokers, driven by hand in one thread on simulated
timers with nothing patched: first as scripts, then as interleavings drawn from a seed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.model import TopicPartition
from kbroker.ports import Deferred
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.appends.append import PartitionAppendResult
from kbroker.replication.role import Role
from tests.coordinator.group.consumers import Consumer
from tests.coordinator.group.members import ClientMember
from tests.sim.group_clients import GroupClient, known, not_durable, reloaded
from tests.sim.interleavings import Interleaving
from tests.sim.two_brokers import (
    GROUP_PARTITION,
    LAG_MAX_MS,
    Cluster,
    fence,
    unfence,
)

EVENTS = TopicPartition("events", 0)
FORBIDDEN_NAMES = frozenset({"monkeypatch", "mock", "setattr", "asyncio", "threading", "time"})
MODULES = ("interleavings.py", "group_clients.py", "two_brokers.py", "test_two_brokers.py")
SEEDS = 200
SEEDS_PER_TEST = 25


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """`events` has two replicas and min.insync.replicas=1, broker 1 leads."""
    made = Cluster(tmp_path)
    made.create_topic("events", [[1, 2]])
    made.settle()
    yield made
    made.close()


def error_of(appended: Deferred[PartitionAppendResult]) -> ErrorCode:
    return appended.value.error


# -- the controller's decisions reach both brokers ---------------------------------------------


def test_both_brokers_replay_the_same_image_and_host_what_it_names(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    created = cluster.create_topic("pairs", [[1, 2], [2, 1]])
    alone = cluster.create_topic("alone", [[1], [2]])
    assert not created.done and "pairs" not in cluster.controller.image.topics
    cluster.commit()
    assert created.done and alone.done
    one, two = cluster.brokers.values()
    assert "pairs" not in one.image.topics
    cluster.receive()
    assert one.image == two.image == cluster.controller.image
    roles = {
        broker.node_id: {str(p.topic_partition): p.role for p in broker.replicas.partitions()}
        for broker in (one, two)
    }
    leader, follower = Role.LEADER, Role.FOLLOWER
    assert roles == {
        1: {"pairs-0": leader, "pairs-1": follower, "alone-0": leader},
        2: {"pairs-0": follower, "pairs-1": leader, "alone-1": leader},
    }
    cluster.close()


def test_proposals_fail_when_the_controller_moves_and_the_next_one_decides_anew(
    cluster: Cluster,
) -> None:
    kept = cluster.create_topic("kept", [[1]])
    lost = cluster.create_topic("lost", [[2]])
    cluster.fail_over_controller(kept=1)
    for answer in (kept, lost):
        with pytest.raises(KafkaError) as failure:
            _ = answer.value
        assert failure.value.code is ErrorCode.NOT_CONTROLLER
    assert "kept" in cluster.controller.image.topics
    again = cluster.create_topic("lost", [[2]])
    cluster.settle()
    assert again.done and "lost" in cluster.brokers[2].image.topics
    assert cluster.brokers[1].image == cluster.controller.image


# -- a partition with two replicas -----------------------------------------------------------------


def test_acks_all_waits_until_the_follower_has_the_records(cluster: Cluster) -> None:
    one, two = cluster.brokers.values()
    appended = one.append(EVENTS, [1, 2, 3])
    assert not appended.done and one.partition(EVENTS).high_watermark == 0
    cluster.fetch(two, EVENTS)
    cluster.deliver()  # the request, at offset 0: it commits nothing
    assert not appended.done
    cluster.deliver()
    assert two.log_of(EVENTS).log_end_offset == 3
    cluster.fetch(two, EVENTS)
    cluster.deliver()
    assert appended.value.base_offset == 0 and appended.value.last_offset == 2
    assert one.partition(EVENTS).high_watermark == 3


def test_a_fetch_that_waits_at_the_leader_is_answered_by_an_append(cluster: Cluster) -> None:
    one, two = cluster.brokers.values()
    cluster.fetch(two, EVENTS, max_wait_ms=500)
    cluster.deliver()
    assert not cluster.messages
    one.append(EVENTS, [1])
    cluster.timers.advance(0)
    cluster.deliver()
    assert two.log_of(EVENTS).log_end_offset == 1


def test_acks_all_fails_when_leadership_moves_and_the_tail_is_truncated(cluster: Cluster) -> None:
    one, two = cluster.brokers.values()
    assert not one.append(EVENTS, [1]).done
    cluster.settle()
    waiting = one.append(EVENTS, [2])
    cluster.submit(fence(1))
    cluster.commit()
    assert two.receive()
    assert two.partition(EVENTS).is_leader
    still_accepted = one.append(EVENTS, [3])  # broker 1 has not heard of it
    assert not waiting.done and not still_accepted.done
    while one.receive():
        cluster.timers.advance(0)
    assert error_of(waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(still_accepted) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(one.append(EVENTS, [4])) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert error_of(two.append(EVENTS, [5])) is ErrorCode.NONE  # it is alone in the ISR
    cluster.settle()
    assert list(one.stored(EVENTS)) == list(two.stored(EVENTS))
    assert [header.partition_leader_epoch for header, _ in one.stored(EVENTS)] == [0, 1]


def test_acks_all_times_out_and_a_slow_follower_leaves_the_isr_until_it_caught_up(
    cluster: Cluster,
) -> None:
    one = cluster.brokers[1]
    appended = one.append(EVENTS, [1], timeout_ms=5_000)
    cluster.timers.advance(5_000)
    assert error_of(appended) is ErrorCode.REQUEST_TIMED_OUT
    cluster.timers.advance(LAG_MAX_MS)
    second = one.append(EVENTS, [2])
    cluster.propose_isr(one, EVENTS)
    assert one.partition(EVENTS).high_watermark == 0
    cluster.commit()
    cluster.receive()
    assert one.partition(EVENTS).isr == {1}
    assert error_of(second) is ErrorCode.NONE
    cluster.settle()
    assert one.partition(EVENTS).isr == {1, 2}
    assert cluster.controller.image.topics["events"].partitions[0].isr == (1, 2)


# -- a group shard that moves ----------------------------------------------------------------------


@pytest.fixture
def grouped(cluster: Cluster) -> Cluster:
    """With `__consumer_offsets`, which broker 1 leads."""
    cluster.create_group_topic()
    cluster.settle()
    if cluster.leader_of(GROUP_PARTITION).node_id != 1:
        move_groups(cluster)
    return cluster


def move_groups(cluster: Cluster) -> None:
    """Leadership of everything goes to the other broker."""
    leader = cluster.leader_of(GROUP_PARTITION).node_id
    cluster.submit(fence(leader))
    cluster.commit()
    cluster.submit(unfence(leader))
    cluster.settle()


def live(
    cluster: Cluster, members: list[ClientMember | Consumer], *, ms: int, step_ms: int = 1_000
) -> None:
    """Let time pass while these members send heartbeats and everything arrives."""
    for _ in range(ms // step_ms):
        cluster.timers.advance(step_ms)
        for member in members:
            member.poll()
        cluster.settle()


def test_groups_are_replayed_by_the_other_broker_and_waits_fail(grouped: Cluster) -> None:
    one, two = grouped.brokers.values()
    client = GroupClient(grouped)
    classics = [ClientMember(client, name) for name in "ab"]  # type: ignore[arg-type]  # a GroupClient in the place of a Client
    consumers = [Consumer(client, name) for name in "xy"]  # type: ignore[arg-type]  # a GroupClient in the place of a Client
    live(grouped, [*classics, *consumers], ms=20_000)
    assert all(member.partitions for member in classics)
    assert {consumer.error for consumer in consumers} == {ErrorCode.NONE}
    assert sorted(index for c in consumers for _, index in c.assigned) == [0]
    committed = client.commit("h", {0: 42})
    assert not committed.done  # until broker 2 has the record
    grouped.settle()
    assert committed.value is ErrorCode.NONE

    late = ClientMember(client, "late")  # type: ignore[arg-type]  # a GroupClient in the place of a Client
    late.join()
    grouped.settle()
    assert late.joining  # it waits for the others to rejoin
    before = known(one.groups, not_durable(one.groups))
    waiting = client.commit("h", {0: 43})
    move_groups(grouped)
    assert late.errors[-1] is ErrorCode.NOT_COORDINATOR and not late.joining
    assert waiting.value in (ErrorCode.NOT_COORDINATOR, ErrorCode.NONE)
    after = known(two.groups, not_durable(two.groups))
    assert before["described"].items() <= after["described"].items()
    assert after["offsets"]["h"] != {} and set(after["offsets"]) == set(before["offsets"])
    with pytest.raises(KafkaError) as failure:
        one.groups.runtime.host(0)
    assert failure.value.code is ErrorCode.NOT_COORDINATOR

    live(grouped, [*classics, *consumers, late], ms=30_000)
    assert all(member.partitions for member in (*classics, late))
    assert len({member.generation for member in (*classics, late)}) == 1


def test_a_session_ends_by_the_timers_of_the_broker_that_coordinates(grouped: Cluster) -> None:
    two = grouped.brokers[2]
    client = GroupClient(grouped)
    stays, dies = ClientMember(client, "stays"), ClientMember(client, "dies")  # type: ignore[arg-type]  # a GroupClient in the place of a Client
    lives, ends = Consumer(client, "lives"), Consumer(client, "ends")  # type: ignore[arg-type]  # a GroupClient in the place of a Client
    live(grouped, [stays, dies, lives, ends], ms=20_000)
    assert dies.partitions and stays.partitions
    move_groups(grouped)
    live(grouped, [stays, lives], ms=60_000)
    assert stays.partitions is not None and len(stays.partitions) == 12
    assert dies.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    members = two.groups.consumer_describe("c")[1]
    assert [member.member_id for member in members] == ["lives"]


def test_a_reload_knows_what_the_coordinator_knows(grouped: Cluster) -> None:
    client = GroupClient(grouped)
    members = [ClientMember(client, "a"), Consumer(client, "x")]  # type: ignore[arg-type]  # a GroupClient in the place of a Client
    live(grouped, members, ms=10_000)
    client.commit("h", {0: 7})
    broker = grouped.leader_of(GROUP_PARTITION)
    besides = not_durable(broker.groups)
    assert known(reloaded(grouped, broker), besides) == known(broker.groups, besides)


# -- interleavings --------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_any_interleaving_keeps_the_invariants(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        run_seed(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.timeout(900)
def test_many_interleavings_keep_the_invariants(tmp_path: Path) -> None:
    for seed in range(1_000, 2_000):
        run_seed(seed, tmp_path)


def run_seed(seed: int, folder: Path) -> None:
    """One line tells the seed of a failure."""
    cluster = Cluster(folder / str(seed))
    try:
        Interleaving(cluster, seed).run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        cluster.close()


# -- nothing is patched ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_patched_and_nothing_private_reached(name: str) -> None:
    tree = ast.parse((Path(__file__).parent / name).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            assert isinstance(node.value, ast.Name) and node.value.id == "self", ast.unparse(node)
        names: list[str] = []
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        elif isinstance(node, ast.Name):
            names = [node.id]
        assert not FORBIDDEN_NAMES & {part for each in names for part in each.split(".")}
