"""A metadata quorum of controllers of kbroker and of Apache Kafka 4.3.1: each votes for, leads and
follows the other; the leader is killed or stopped until both have led. In the end all logs have
the same bytes up to the high watermark. Kafka's tool describes the quorum and changes its voters.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spark_jobs.java import java_problem
from tests.reference.controllers import Controllers, Watch, all_fetch, run_class, voters_of

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(600),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
]

MOST_ROUNDS = 12
TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"
PATIENT = {
    "controller.quorum.election.timeout.ms": "5000",
    "controller.quorum.fetch.timeout.ms": "10000",
}
"""The leader stays while Java starts beside it."""


@contextmanager
def stopped_at_the_end(controllers: Controllers) -> Iterator[Controllers]:
    with ExitStack() as stack:
        stack.callback(controllers.stop)
        yield controllers


@pytest.mark.parametrize(
    "kafka",
    [
        pytest.param({3}, id="a voter of Kafka among kbroker's"),
        pytest.param({2, 3}, id="a voter of kbroker among Kafka's"),
    ],
)
def test_kbroker_and_kafka_lead_and_follow_each_other(tmp_path: Path, kafka: set[int]) -> None:
    end: list[int] = []

    async def script(watch: Watch) -> None:
        led, epoch = set[bool](), 0
        for number in range(MOST_ROUNDS):
            partition = await watch.described(all_fetch)
            assert partition.leader_epoch >= epoch
            leader, epoch = partition.leader_id, partition.leader_epoch
            controllers.end(leader, signal.SIGKILL if number % 2 else signal.SIGTERM)
            await watch.described(lambda found, old=epoch: found.leader_epoch > old)
            led.add(leader in kafka)
            controllers.start(leader)
            if len(led) == 2:
                break
        assert led == {True, False}
        partition = await watch.described(all_fetch)
        high_watermark = partition.high_watermark
        await watch.described(
            lambda found: all(
                voter.log_end_offset > high_watermark for voter in found.current_voters
            )
        )
        end.append(high_watermark)

    with stopped_at_the_end(Controllers(tmp_path, (1, 2, 3), kafka=kafka)) as controllers:
        for node in (3, 2, 1):  # Kafka's take longer to start
            controllers.start(node)
        controllers.run(script)
    logs = [controllers.committed(node, end[0]) for node in controllers.voters]
    assert logs[0] and logs[0] == logs[1] == logs[2]


def told_ids(text: str) -> list[int]:
    return [int(each) for each in re.findall(r'"id": (\d+)', text)]


@pytest.mark.parametrize(
    "kafka", [pytest.param((), id="of kbroker"), pytest.param((4,), id="of Kafka")]
)
def test_kafkas_tool_describes_the_quorum_and_changes_its_voters(
    tmp_path: Path, kafka: tuple[int, ...]
) -> None:
    """A fourth controller is added and removed again, then the leader is."""

    async def script(watch: Watch) -> None:
        partition = await watch.described(
            lambda found: all_fetch(found) and [each.replica_id for each in found.observers] == [4]
        )
        status = dict(
            line.split(":", 1) for line in tool("describe", "--status").splitlines() if line
        )
        epoch = partition.leader_epoch
        is_led_by = int(status["LeaderEpoch"]), int(status["LeaderId"])
        assert is_led_by == (epoch, partition.leader_id) or is_led_by[0] > epoch
        assert int(status["HighWatermark"]) >= partition.high_watermark
        assert told_ids(status["CurrentVoters"]) == [1, 2, 3]
        assert controllers.directory_id(1) in status["CurrentVoters"]
        assert f"CONTROLLER://127.0.0.1:{controllers.ports[1]}" in status["CurrentVoters"]
        assert told_ids(status["CurrentObservers"]) == [4]
        _, *rows = (line.split() for line in tool("describe", "--replication").splitlines() if line)
        assert sorted((int(row[0]), row[1]) for row in rows) == [
            (node, controllers.directory_id(node)) for node in (1, 2, 3, 4)
        ]
        roles = {int(row[0]): row[-1] for row in rows}
        assert roles.pop(4) == "Observer"
        assert sorted(roles.values()) == ["Follower", "Follower", "Leader"]
        config = str(controllers.properties(4))
        assert "Added controller 4" in tool("add-controller", options=("--command-config", config))
        await watch.described(lambda found: voters_of(found) == {1, 2, 3, 4} and all_fetch(found))
        remove(4)
        await watch.described(lambda found: voters_of(found) == {1, 2, 3} and all_fetch(found))
        leader = (await watch.described()).leader_id
        remove(leader)
        after = await watch.described(
            lambda found: voters_of(found) == {1, 2, 3} - {leader} and all_fetch(found)
        )
        assert after.leader_id != leader

    def tool(*arguments: str, options: tuple[str, ...] = ()) -> str:
        where = ("--bootstrap-controller", controllers.bootstrap)
        return run_class(TOOL, *where, *options, *arguments)

    def remove(node: int) -> None:
        key = ("-i", str(node), "-d", controllers.directory_id(node))
        assert "Removed" in tool("remove-controller", *key)

    quorum = Controllers(tmp_path, (1, 2, 3), spares=(4,), kafka=kafka, settings=PATIENT)
    with stopped_at_the_end(quorum) as controllers:
        controllers.start()
        controllers.run(script)
