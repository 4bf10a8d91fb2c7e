"""Each partition has a replica on a broker of kbroker and one on a broker of Apache Kafka 4.3.1,
which fail over to each other in both directions: records, groups and transactions. In the end both
have the same bytes of everything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from kbroker.model import TopicPartition
from kbroker.testing.cluster_state import committed_offsets
from spark_jobs.java import java_problem
from tests.clients import test_share_groups as share_groups
from tests.clients.adapters import wait_until
from tests.clients.kafka_tools import KafkaTools
from tests.cluster.data_run import DataRun
from tests.cluster.run import START_TIMEOUT_S
from tests.reference.mixed_clients import (
    CommittingMember,
    Feed,
    Transactions,
    Writer,
    read_all,
    wait_for_commits,
)
from tests.reference.mixed_cluster import KAFKA, KBROKER, MixedCluster, Process, other
from tests.reference.test_directories import complaints

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(400),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LOADS = (
    "confluent-producer",
    "java-producer",
    "confluent-transactions",
    "java-transactions",
    "confluent-member1",
    "java-member",
    "committed-reader",
)
OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
SHARE_STATES_TOPIC = "__share_group_state"
BROKERS = pytest.param(KBROKER, id="kbroker"), pytest.param(KAFKA, id="Apache Kafka")
FETCH_WAIT_S = 0.8
"""Longer than replica.fetch.wait.max.ms. A follower that is alive has the high watermark by then;
no fetch of one that hangs is waiting any more.
"""
UNDER_KBROKER = pytest.mark.parametrize("running", ["kbroker"], indirect=True)
UNDER_KAFKA = pytest.mark.parametrize("running", ["kafka"], indirect=True)
"""What does not depend on the controller is tested under one."""
LEFT_MS = 5_000
"""transaction.timeout.ms of a transaction that its producer never ends."""


@pytest.fixture(scope="module", params=["kbroker", "kafka"], ids="a controller of {}".format)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MixedCluster]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("mixed")
        yield MixedCluster(folder, stack, controller=request.param)


@pytest.fixture
def cluster(running: MixedCluster) -> MixedCluster:
    """Both brokers are there, even if a test before has failed."""
    running.heal()
    return running


# -- clients of every kind ------------------------------------------------------------------------


@contextmanager
def killed(process: Process) -> Iterator[None]:
    process.kill()
    yield
    process.start()


@contextmanager
def paused(process: Process) -> Iterator[None]:
    process.pause()
    try:
        yield
    finally:
        process.resume()


@contextmanager
def stopped(process: Process) -> Iterator[None]:
    process.stop()
    yield
    process.start()


Fault = Callable[[Process], AbstractContextManager[None]]
FAULTS: Mapping[str, Sequence[Fault]] = {"kbroker": (killed, paused), "kafka": (killed, stopped)}
"""By controller."""


def test_no_client_notices_which_broker_leads(cluster: MixedCluster, tmp_path: Path) -> None:
    run = DataRun(tmp_path, loads=LOADS, cluster=cluster)
    with ExitStack() as stack:
        run.start_clients(stack)
        run.wait_for_progress("the load begins", START_TIMEOUT_S)
        for fault in FAULTS[cluster.controller]:
            for node in cluster.nodes.values():
                # Each kind leads, and each follows; clients get to know of both.
                cluster.elect_preferred()
                run.wait_for_progress("both brokers lead")
                with fault(node.process):
                    run.wait_for_progress(f"{node} is {fault.__name__}")
                cluster.wait_in_sync()
        summary = run.finish()
    assert summary.acknowledged > 2_000
    assert cluster.check_replicas() > 100_000
    cluster.check_stopped_kbroker()
    if cluster.controller == "kbroker":  # once: the tool starts three JVMs
        assert complaints(cluster.nodes[KBROKER].process.data) == []


# -- records --------------------------------------------------------------------------------------


def numbered(word: str, count: int) -> list[bytes]:
    return [f"{word} {number} ".encode() * 5 for number in range(count)]


@UNDER_KBROKER
def test_records_of_every_codec_and_of_acks_of_both(cluster: MixedCluster) -> None:
    """`any` is written while one broker is down; `both` has min.insync.replicas=2, so nothing is
    acknowledged meanwhile, and what is acknowledged both have.
    """
    cluster.create_topic("any", 2)
    cluster.create_topic("both", 2, min_insync_replicas="2")
    bootstrap = cluster.bootstrap_servers
    writers = [Writer(bootstrap, compression_type=codec) for codec in CODECS]
    strict = Writer(bootstrap, compression_type="lz4")
    expected: list[bytes] = []
    count = 0

    def write(word: str) -> None:
        for codec, writer in zip(CODECS, writers, strict=True):
            values = numbered(f"{word} {codec}", 50)
            expected.extend(values)
            for partition in range(2):
                writer.send("any", partition, values)

    for node in (KBROKER, KAFKA):
        cluster.elect_preferred()
        write(f"before {node}")
        strict.send("both", 0, numbered(f"before {node}", 50))
        strict.send("both", 1, numbered(f"before {node}", 50))
        assert [writer.flush() for writer in (*writers, strict)] == [0] * 6
        time.sleep(FETCH_WAIT_S)
        cluster.kill(node)
        cluster.wait_for_leader(other(node), "any")
        write(f"without {node}")
        for partition in range(2):
            strict.send("both", partition, numbered(f"without {node}", 50))
        assert [writer.flush() for writer in writers] == [0] * 5
        assert strict.flush(2.0) == 100
        found = read_all(bootstrap, "any", 2)
        assert [sorted(values) for values in found.values()] == [sorted(expected)] * 2
        count += 50
        assert [len(values) for values in read_all(bootstrap, "both", 2).values()] == [count] * 2
        cluster.start(node)
        assert strict.flush() == 0
        count += 50
    acknowledged = [strict.acknowledged["both", partition] for partition in range(2)]
    assert list(read_all(bootstrap, "both", 2).values()) == acknowledged
    assert [len(values) for values in acknowledged] == [count] * 2
    cluster.check_replicas()


@UNDER_KAFKA
@pytest.mark.parametrize("leader", BROKERS)
def test_a_returning_leader_cuts_its_tail(cluster: MixedCluster, leader: int) -> None:
    """A leader dies with records that its follower, which hangs, never fetched: those of acks=1 are
    lost, as they may be; those of the idempotent producer are sent again, to the follower.
    """
    bootstrap, follower = cluster.bootstrap_servers, other(leader)
    partition = TopicPartition(f"tails-of-{leader}", leader - KBROKER)
    cluster.create_topic(partition.topic, 2)
    cluster.elect_preferred()
    cluster.wait_for_leader(leader, *partition)
    idempotent = Writer(bootstrap)
    hasty = Writer(bootstrap, enable_idempotence=False, acks=1)
    idempotent.send(*partition, numbered("kept", 40))
    assert idempotent.flush() == 0
    hasty.send(*partition, [b"first"])
    assert hasty.flush() == 0
    lost, again = numbered("lost", 30), numbered("again", 20)
    with paused(cluster.nodes[follower].process):
        time.sleep(FETCH_WAIT_S)
        hasty.send(*partition, lost)
        assert hasty.flush(2) == 0
        idempotent.send(*partition, again)
        wait_until(lambda: cluster.stored_values(leader, partition)[-20:] == again, 2, "the tail")
        cluster.kill(leader)
    assert idempotent.flush() == 0
    cluster.wait_for_leader(follower, *partition)
    idempotent.send(*partition, numbered("later", 10))
    assert idempotent.flush() == 0
    kept = [*numbered("kept", 40), b"first"]
    expected = [*kept, *again, *numbered("later", 10)]
    assert cluster.stored_values(follower, partition) == expected
    assert cluster.stored_values(leader, partition) == [*kept, *lost, *again]
    cluster.start(leader)
    assert cluster.stored_values(leader, partition) == expected
    cluster.elect_preferred()
    cluster.wait_for_leader(leader, *partition)
    idempotent.send(*partition, numbered("last", 10))  # their sequences follow those of the tail
    assert idempotent.flush() == 0
    found = read_all(bootstrap, partition.topic, 2)[partition.partition]
    assert found == [*expected, *numbered("last", 10)]
    cluster.check_replicas()


@UNDER_KBROKER
@pytest.mark.parametrize("first", BROKERS)
def test_a_replica_outside_the_isr_leads_if_it_has_what_is_committed(
    cluster: MixedCluster, first: int
) -> None:
    """Below min.insync.replicas the high watermark stays (KIP-966), so the broker that left first
    may lead when it is the first to return. The other one truncates the records that only it has.
    """
    bootstrap, second = cluster.bootstrap_servers, other(first)
    partition = TopicPartition(f"eligible-{first}", 0)
    cluster.create_topic(partition.topic, 1, min_insync_replicas="2")
    strict = Writer(bootstrap)
    hasty = Writer(bootstrap, enable_idempotence=False, acks=1)
    strict.send(*partition, numbered("both", 20))
    assert strict.flush() == 0
    time.sleep(FETCH_WAIT_S)
    cluster.stop(first)
    cluster.wait_for_leader(second, *partition)
    hasty.send(*partition, numbered("lost", 20))
    assert hasty.flush() == 0
    cluster.stop(second)
    cluster.nodes[first].process.start()
    cluster.wait_for_leader(first, *partition)
    assert read_all(bootstrap, partition.topic, 1) == {0: numbered("both", 20)}
    cluster.start(second)
    strict.send(*partition, numbered("later", 20))
    assert strict.flush() == 0
    expected = numbered("both", 20) + numbered("later", 20)
    assert cluster.stored_values(first, partition) == expected
    assert cluster.stored_values(second, partition) == expected
    cluster.check_replicas()


# -- coordinators ---------------------------------------------------------------------------------


@UNDER_KAFKA
def test_groups_go_on_with_the_other_coordinator(cluster: MixedCluster) -> None:
    """No member is assigned its partitions anew, no record is skipped, and none is read again that
    was committed.
    """
    bootstrap = cluster.bootstrap_servers
    cluster.create_topic("feed", 2)
    with ExitStack() as stack:
        members = [
            stack.enter_context(CommittingMember(bootstrap, f"{each}-group", each, "feed"))
            for each in ("classic", "consumer")
        ]
        writer = Writer(bootstrap)
        feed = stack.enter_context(Feed(writer, "feed", 2))
        wait_for_commits(members)
        first = cluster.leader(OFFSETS_TOPIC)
        for coordinator in (first, other(first)):
            cluster.wait_for_leader(coordinator, OFFSETS_TOPIC)
            cluster.kill(coordinator)
            cluster.wait_for_leader(other(coordinator), OFFSETS_TOPIC)
            wait_for_commits(members)
            cluster.start(coordinator)
        feed.stop()
        ends = {each: len(writer.acknowledged["feed", each]) for each in range(2)}
        for member in members:
            wait_until(
                lambda member=member: member.committed == ends, 60, f"{member.group} has read all"
            )
    for member in members:
        assert member.wrong == []
        assert {p: sorted(set(read)) for p, read in member.offsets.items()} == {
            p: list(range(end)) for p, end in ends.items()
        }
        assert member.assignments == 1
        partitions = [TopicPartition("feed", each) for each in range(2)]
        found = asyncio.run(committed_offsets(bootstrap, member.group, partitions))
        assert found == dict(zip(partitions, ends.values(), strict=True))
    cluster.check_replicas()


@UNDER_KAFKA
def test_share_groups_go_on_with_the_other_leader(
    cluster: MixedCluster, kafka_tools: KafkaTools
) -> None:
    """Partition, group and share states have one leader, which dies: what was acknowledged is not
    delivered again by the other one, everything else is.
    """
    bootstrap, group = cluster.bootstrap_servers, "share-group"
    cluster.create_topic("shared", 1)
    share_groups.read_from_the_start(bootstrap, group)
    share_groups.produce(bootstrap, "shared", range(500))

    def consume() -> list[str]:
        return share_groups.consume(kafka_tools, bootstrap, "shared", group, 100)

    read = consume()
    for broker in (KBROKER, KAFKA, KBROKER, KAFKA):
        cluster.kill(broker)
        for topic in ("shared", OFFSETS_TOPIC, SHARE_STATES_TOPIC):
            cluster.wait_for_leader(other(broker), topic)
        read += consume()
        cluster.start(broker)
    assert sorted(map(int, read)) == list(range(500))
    (row,) = (
        row
        for row in share_groups.tool(kafka_tools, bootstrap, "--describe", "--group", group)
        if row[0] == group
    )
    assert row[-1] == "0"
    cluster.check_replicas()


@UNDER_KBROKER
def test_transactions_outlive_their_coordinator(cluster: MixedCluster) -> None:
    """Each is open when its coordinator dies, with records of three partitions and an offset: one
    is committed afterwards, one aborted, one goes on and is committed, and one is left to time out.
    """
    bootstrap = cluster.bootstrap_servers
    cluster.create_topic("accounts", 3)
    with ExitStack() as stack:

        def transactions(name: str, **settings: int) -> Transactions:
            made = Transactions(bootstrap, name, **settings)
            stack.callback(made.close)
            return made

        names = "committed", "aborted", "continued"
        committed, aborted, continued = open_ones = [transactions(name) for name in names]
        first = cluster.leader(TRANSACTIONS_TOPIC)
        expected: list[bytes] = []
        offsets: dict[str, int | None] = {"aborted": None}
        for number, coordinator in enumerate((first, other(first)), 1):
            cluster.wait_for_leader(coordinator, TRANSACTIONS_TOPIC)
            left = transactions(f"left-{number}", timeout_ms=LEFT_MS)
            for each in (*open_ones, left):
                each.begin()
                each.write("accounts", numbered(f"{each.name} {number}", 30), 3)
                each.send_offset("accounts", number)
            cluster.kill(coordinator)
            committed.commit()
            aborted.abort()
            continued.write("accounts", numbered(f"after {number}", 9), 3)
            continued.commit()
            for name, count in ((f"committed {number}", 30), (f"continued {number}", 30)):
                expected += numbered(name, count)
            expected += numbered(f"after {number}", 9)
            offsets["committed"] = offsets["continued"] = number
            check_committed(bootstrap, expected, offsets)
            cluster.start(coordinator)
            committed.begin()  # with the new coordinator, and undone by it
            committed.write("accounts", numbered("undone", 3), 3)
            committed.abort()
            check_committed(bootstrap, expected, offsets)
    cluster.check_replicas()


def check_committed(bootstrap: str, expected: list[bytes], offsets: dict[str, int | None]) -> None:
    """read_committed readers see exactly these records of `accounts`, groups have these offsets."""

    def values() -> list[bytes]:
        found = read_all(bootstrap, "accounts", 3)
        return [value for partition in found.values() for value in partition]

    wait_until(lambda: len(values()) >= len(expected), 30, "what was left open timed out")
    assert sorted(values()) == sorted(expected)
    partition = TopicPartition("accounts", 0)
    for group, offset in offsets.items():
        found = asyncio.run(committed_offsets(bootstrap, group, [partition]))
        assert found == {partition: offset}, group
