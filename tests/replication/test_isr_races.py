"""One leader, the controller that carries out its proposals, and metadata and answers that arrive
late, in any order between the two: by seed. No replica that the controller counts as in sync, and
may elect, lacks a record that the leader took for committed.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kbroker.model import TopicPartition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import AlterPartitionRequest, AlterPartitionResponse
from kbroker.replication.leaders.isr import IsrPorts
from kbroker.replication.leaders.isr_changes import IsrChanges
from kbroker.replication.partition import Partition
from tests.replication.number_log import NumberLog
from tests.replication.proposals import Brokers
from tests.sim.replication_mutants import DECIDED_MUTANTS

LEADER = 1
REPLICAS = (1, 2, 3)
TOPIC_ID = bytes(15) + b"\x01"
BROKER_EPOCH = 9
LAG_MS = 100
STEPS = 300


class World:
    """isr, epoch: as the controller has committed them. metadata: of each epoch; the leader has
    taken over those before `taken`. answers: on their way to the leader.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000
        self.counts: Counter[str] = Counter()
        self.isr: tuple[int, ...] = (1, 2)
        self.epoch = 0
        self.metadata: list[tuple[int, tuple[int, ...]]] = [(0, self.isr)]
        self.taken = 0
        self.requests: list[AlterPartitionRequest] = []
        self.answers: list[AlterPartitionResponse] = []
        self.changes = IsrChanges(LEADER)
        self.log = NumberLog()
        self.partition = Partition(
            TopicPartition("t", 0),
            TOPIC_ID,
            LEADER,
            self.log,  # type: ignore[arg-type]  # a log of numbers only
            lag_max_ms=LAG_MS,
            isr_ports=IsrPorts(Brokers(dict.fromkeys(REPLICAS, BROKER_EPOCH)), self.changes),
        )
        self.take_metadata()

    def step(self) -> None:
        """Let something happen."""
        steps = (
            (self.append, 6),
            (self.fetch, 10),
            (self.shrink, 2),
            (self.pass_time, 3),
            (self.send, 3),
            (self.decide, 3),
            (self.fence, 0.3),
            (self.answer, 3),
            (self.lose_answer, 0.5),
            (self.take_metadata, 2),
            (self.take_metadata_again, 2),
        )
        (step,) = self.random.choices([each for each, _ in steps], [each for _, each in steps])
        step()

    # the leader and its followers

    def append(self) -> None:
        self.log.log_end_offset += 1
        self.partition.after_append(100, self.now_ms)

    def fetch(self) -> None:
        replica = self.random.choice((2, 3))
        end = self.end_of(replica)
        self.partition.follower_fetched(
            replica,
            fetch_offset=min(end + self.random.randint(0, 2), self.log.log_end_offset),
            log_start_offset=0,
            broker_epoch=BROKER_EPOCH,
            now_ms=self.now_ms,
        )

    def end_of(self, replica: int) -> int:
        return max(self.partition.remotes[replica].log_end_offset, 0)

    def shrink(self) -> None:
        self.partition.shrink_isr(self.now_ms)

    def pass_time(self) -> None:
        self.now_ms += self.random.randint(1, LAG_MS)

    # the controller

    def send(self) -> None:
        request = self.changes.request(BROKER_EPOCH, self.now_ms)
        if request is not None:
            self.requests.append(request)

    def decide(self) -> None:
        if not self.requests:
            return
        (asked,) = self.requests.pop(0).topics[0].partitions
        wanted = tuple(each.broker_id for each in asked.new_isr_with_epochs)
        error = ErrorCode.NONE
        if asked.partition_epoch < self.epoch:
            error = ErrorCode.INVALID_UPDATE_VERSION
        else:
            self.counts["expanded" if len(wanted) > len(self.isr) else "shrunk"] += 1
            self.commit(wanted)
        kind = AlterPartitionResponse
        data = kind.PartitionData(
            error_code=int(error), leader_epoch=1, isr=list(self.isr), partition_epoch=self.epoch
        )
        topic = kind.TopicData(topic_id=TOPIC_ID, partitions=[data])
        self.answers.append(kind(topics=[topic]))

    def fence(self) -> None:
        """A member's broker has died and is back before the leader knows."""
        if len(self.isr) > 1:
            self.counts["fenced"] += 1
            self.commit(tuple(sorted({*self.isr} - {self.random.choice(self.isr[1:])})))

    def commit(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        self.epoch += 1
        self.metadata.append((self.epoch, isr))

    # what arrives

    def answer(self) -> None:
        if self.answers:
            self.changes.answered(self.answers.pop(0), self.now_ms)

    def lose_answer(self) -> None:
        if self.answers:
            self.answers.pop(0)
            self.changes.failed(self.now_ms)

    def take_metadata(self) -> None:
        if self.taken < len(self.metadata):
            self.taken += 1
            self.take_metadata_again()

    def take_metadata_again(self) -> None:
        epoch, isr = self.metadata[self.taken - 1]
        pending = self.partition.in_sync.pending
        if pending is not None and epoch == self.partition.partition_epoch:
            self.counts["known while a proposal is pending"] += 1
        self.partition.become_leader(
            leader_epoch=1,
            partition_epoch=epoch,
            replicas=REPLICAS,
            isr=isr,
            min_isr=1,
            now_ms=self.now_ms,
        )

    # what must hold

    def check(self) -> None:
        high_watermark = self.partition.high_watermark
        for replica in self.isr:
            if replica != LEADER:
                assert self.end_of(replica) >= high_watermark, (
                    f"{replica} is in the ISR {self.isr} and ends at {self.end_of(replica)}, "
                    f"the high watermark is {high_watermark}"
                )

    def settle(self) -> None:
        """All followers catch up, and nothing is late any more."""
        for _ in range(20):
            self.now_ms += LAG_MS // 2
            self.send()
            self.decide()
            self.answer()
            self.take_metadata()
            for replica in (2, 3):
                self.partition.follower_fetched(
                    replica,
                    fetch_offset=self.log.log_end_offset,
                    log_start_offset=0,
                    broker_epoch=BROKER_EPOCH,
                    now_ms=self.now_ms,
                )
            self.check()


def run_seed(seed: int) -> World:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
        world.check()
    while world.taken < len(world.metadata):
        world.take_metadata()
    world.settle()
    assert set(world.isr) == world.partition.isr == set(REPLICAS), "a proposal is stuck"
    assert world.partition.high_watermark == world.log.log_end_offset
    return world


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_what_is_committed_is_on_every_replica_that_may_be_elected(first: int) -> None:
    for seed in range(first, first + 25):
        run_seed(seed)


def test_the_seeds_cover_what_can_happen() -> None:
    counts = sum((run_seed(seed).counts for seed in range(20)), Counter[str]())
    for name in ("expanded", "shrunk", "fenced", "known while a proposal is pending"):
        assert counts[name] > 10, counts


@pytest.mark.parametrize(
    "name", ["committed_instead_of_maximal_isr", "known_metadata_end_what_is_pending"]
)
def test_a_mutant_is_found(name: str) -> None:
    with DECIDED_MUTANTS[name](), pytest.raises(AssertionError, match="is in the ISR"):
        for seed in range(100):
            run_seed(seed)
