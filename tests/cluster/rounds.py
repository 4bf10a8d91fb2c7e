"""Rounds of faults on a real cluster under load, and what must hold after each of them.

    python -m tests.cluster.rounds [--seed 17] [--rounds 50] [--brokers 0] [--folder PATH]

Three controllers, and brokers beside them: two, or none, for which simulated ones register. Each
round draws faults (`schedule`), carries them out (`faults`), and waits until every client is
acknowledged something again. The schedule follows from the seed; what meets a fault does not, so a
failure may need several runs of its line. Needs root; names that the run makes are in `run_names`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kbroker.client.connection import BrokerConnection
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kbroker.quorum.format import METADATA_FOLDER
from spark_jobs.java import java_problem
from tests.cluster.checks import (
    Leaders,
    check_acknowledged,
    check_equal_logs,
    logged_leaders,
    stored_leaders,
)
from tests.cluster.cluster import CLIENT, Cluster, ClusterNode
from tests.cluster.controller_client import ControllerClient, QuorumPartition
from tests.cluster.faults import possible_kinds, strike, victims_of
from tests.cluster.loads import (
    ClientProcess,
    Resource,
    start_load,
    start_simulated_brokers,
)
from tests.cluster.network import network_problem
from tests.cluster.schedule import Kind, Round, draw_schedule

RECOVERY_TIMEOUT_S: Final = 60.0
"""From the end of a round's faults until every client is acknowledged something: connections that
were cut retransmit in intervals that double.
"""
APPLY_TIMEOUT_S: Final = 20.0
"""From the log of a node to its answers."""
CHECK_EVERY: Final = 10
RESOURCES_PER_REQUEST: Final = 200
POLL_S: Final = 0.1

Report = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What one run is drawn from. loads: None for those that this cluster and machine can have."""

    seed: int = 17
    rounds: int = 50
    brokers: int = 0
    kinds: tuple[Kind, ...] = tuple(Kind)
    loads: tuple[str, ...] | None = None

    def usable(self) -> Options:
        """Without the kinds that this machine cannot have."""
        possible = possible_kinds()
        return replace(self, kinds=tuple(kind for kind in self.kinds if kind in possible))

    def line(self, rounds: int) -> str:
        """The command that replays so many rounds."""
        words = ["python -m tests.cluster.rounds", f"--seed {self.seed}", f"--rounds {rounds}"]
        words.append(f"--brokers {self.brokers}")
        if self.kinds != tuple(Kind):
            words.append(f"--kinds {','.join(kind.value for kind in self.kinds)}")
        if self.loads is not None:
            words.append(f"--loads {','.join(self.loads)}")
        return " ".join(words)

    def load_names(self) -> tuple[str, ...]:
        """The libraries that put load on the cluster."""
        if self.loads is not None:
            return self.loads
        first = "confluent" if self.brokers else "wire"
        return (first,) if java_problem() else (first, "java")


class RoundFailure(AssertionError):
    """What did not hold, and the line that replays it."""


@dataclass(frozen=True)
class Summary:
    """What a run that held has seen."""

    acknowledged: int
    epochs: int
    log_bytes: int


class Run:
    """A cluster under load."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._folder = folder
        self._options = options
        self._leaders = Leaders()
        self._log_bytes = 0
        self.cluster = Cluster(folder, brokers=options.brokers)
        self._clients: list[ClientProcess] = []
        self._loads: list[ClientProcess] = []

    def begin(self, stack: ExitStack) -> None:
        """Start everything, and wait until every client was acknowledged something."""
        stack.enter_context(self.cluster)
        if not self._options.brokers:
            brokers = start_simulated_brokers(self.cluster, self._folder / "simulated.log")
            stack.callback(brokers.stop)
            self._clients.append(brokers)
        for library in self._options.load_names():
            load = start_load(library, self.cluster, self._folder / f"{library}.log")
            stack.callback(load.stop)
            self._clients.append(load)
            self._loads.append(load)
        self._wait_for_progress("the load begins")

    def quorum(self, timeout_s: float) -> QuorumPartition:
        """The quorum as its leader sees it."""
        with self.cluster.network.entered(CLIENT):
            return asyncio.run(self._quorum(timeout_s))

    async def _quorum(self, timeout_s: float) -> QuorumPartition:
        async with ControllerClient(self.cluster.controller_addresses) as client:
            return await client.wait_for_quorum(timeout_s)

    def play(self, plan: Round) -> None:
        """One round."""
        time.sleep(plan.quiet_s)
        leader_id = self.quorum(RECOVERY_TIMEOUT_S).leader_id
        strike(self.cluster, plan, victims_of(self.cluster, leader_id))
        self._wait_for_progress("every client is acknowledged something after the faults")
        for node in self.cluster.nodes.values():
            assert node.process.running(), f"{node} has ended: {_tail(node)}"
        self.observe_leaders()

    def observe_leaders(self) -> None:
        """Take down who led which epoch, by all logs of all nodes."""
        partition = self.quorum(RECOVERY_TIMEOUT_S)
        self._leaders.observe(partition.leader_epoch, partition.leader_id, "DescribeQuorum")
        for node in self.cluster.nodes.values():
            for epoch, leader in logged_leaders(node.log_text):
                self._leaders.observe(epoch, leader, f"log lines of {node}")
            for epoch, leader in stored_leaders(metadata_log(node)):
                self._leaders.observe(epoch, leader, f"LeaderChange in the log of {node}")

    def check_logs(self) -> None:
        """All nodes catch up with what is committed now, and have the same bytes up to there."""
        nodes = set(self.cluster.nodes)
        high_watermark = self.quorum(RECOVERY_TIMEOUT_S).high_watermark

        def have_caught_up() -> bool:
            partition = self.quorum(RECOVERY_TIMEOUT_S)
            ends = {
                each.replica_id: each.log_end_offset
                for each in (*partition.current_voters, *partition.observers)
            }
            return all(ends.get(node, -1) >= high_watermark for node in nodes)

        self._wait(have_caught_up, f"all nodes fetch up to offset {high_watermark}")
        logs = {str(node): metadata_log(node) for node in self.cluster.nodes.values()}
        self._log_bytes = check_equal_logs(logs, high_watermark)

    def check_acknowledged(self) -> None:
        """Every node has everything that was acknowledged until now."""
        wanted: dict[Resource, dict[str, str]] = {}
        for load in self._loads:
            wanted |= load.acknowledged.configs()
        for node in self.cluster.nodes.values():
            with self.cluster.network.entered(CLIENT):
                asyncio.run(_check_node(node, wanted))

    def finish(self) -> Summary:
        """Stop the load, and check everything."""
        for load in self._loads:
            load.stop()
        self.check_logs()
        self.check_acknowledged()
        self.observe_leaders()
        count = sum(load.acknowledged.count for load in self._loads)
        return Summary(count, self._leaders.epochs, self._log_bytes)

    def _wait_for_progress(self, what: str) -> None:
        before = [load.acknowledged.count for load in self._loads]
        self._wait(
            lambda: all(
                load.acknowledged.count > count
                for load, count in zip(self._loads, before, strict=True)
            ),
            what,
        )

    def _wait(self, is_done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while not is_done():
            failures = [each.failure for each in self._clients if each.failure is not None]
            assert not failures, "; ".join(failures)
            assert time.monotonic() < deadline, f"not within {RECOVERY_TIMEOUT_S:.0f} s: {what}"
            time.sleep(POLL_S)


def metadata_log(node: ClusterNode) -> bytes:
    """The segments of its metadata log, in order."""
    folder = node.process.data / METADATA_FOLDER
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


async def _check_node(node: ClusterNode, wanted: dict[Resource, dict[str, str]]) -> None:
    """Ask until the node has everything, since it may apply the last records later than others.
    Raises AssertionError.
    """
    deadline = time.monotonic() + APPLY_TIMEOUT_S
    while True:
        try:
            check_acknowledged(wanted, await _describe(node, wanted), str(node))
            return
        except (AssertionError, KafkaError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(POLL_S)


async def _describe(
    node: ClusterNode, wanted: Mapping[Resource, Mapping[str, str]]
) -> dict[Resource, dict[str, str] | None]:
    """The configurations that are wanted, as the node answers; None for a resource that is
    unknown.
    """
    found: dict[Resource, dict[str, str] | None] = {}
    queue = list(wanted)
    async with await BrokerConnection.connect(*node.address) as connection:
        while queue:
            part, queue = queue[:RESOURCES_PER_REQUEST], queue[RESOURCES_PER_REQUEST:]
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=kind,
                        resource_name=name,
                        configuration_keys=list(wanted[kind, name]),
                    )
                    for kind, name in part
                ]
            )
            response = await connection.request(request, DescribeConfigsResponse)
            for result in response.results:
                resource = (result.resource_type, result.resource_name)
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    found[resource] = None
                    continue
                if result.error_code:
                    raise KafkaError(ErrorCode(result.error_code), result.error_message or "")
                found[resource] = {each.name: each.value or "" for each in result.configs}
    return found


def _tail(node: ClusterNode) -> str:
    return " | ".join(node.log_text.splitlines()[-5:])


def play_rounds(options: Options, folder: Path, report: Report = lambda line: None) -> Summary:
    """All rounds of a seed. Raises RoundFailure."""
    options = options.usable()
    schedule = draw_schedule(
        options.seed, options.rounds, brokers=options.brokers, kinds=options.kinds
    )
    number, plan = 0, None
    run = Run(options, folder)
    try:
        with ExitStack() as stack:
            run.begin(stack)
            for number, plan in enumerate(schedule, 1):
                begun = time.monotonic()
                run.play(plan)
                if number % CHECK_EVERY == 0:
                    run.check_logs()
                    run.check_acknowledged()
                report(f"round {number}: {plan} ({time.monotonic() - begun:.1f} s)")
            return run.finish()
    except (AssertionError, TimeoutError, KafkaError) as error:
        raise RoundFailure(
            f"round {number} ({plan}): {error}; logs in {folder}; "
            f"replay: {options.line(max(number, 1))}"
        ) from error


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--rounds", type=int, default=Options.rounds)
    parser.add_argument("--brokers", type=int, default=Options.brokers)
    parser.add_argument("--kinds", default=",".join(kind.value for kind in Kind))
    parser.add_argument("--loads", help="java, confluent (needs brokers), wire")
    parser.add_argument("--folder", type=Path, help="kept; a temporary one otherwise")
    arguments = parser.parse_args()
    problem = network_problem()
    if problem is not None:
        print(f"rounds: {problem}", file=sys.stderr)
        return 2
    options = Options(
        seed=arguments.seed,
        rounds=arguments.rounds,
        brokers=arguments.brokers,
        kinds=tuple(Kind(name) for name in arguments.kinds.split(",")),
        loads=tuple(arguments.loads.split(",")) if arguments.loads else None,
    )
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="kbroker-rounds-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"rounds: {folder} is not empty", file=sys.stderr)
        return 2
    try:
        summary = play_rounds(options, folder, lambda line: print(line, flush=True))
    except RoundFailure as failure:
        print(failure, file=sys.stderr)
        return 1
    print(
        f"{options.rounds} rounds: {summary.acknowledged} changes acknowledged and none lost, "
        f"{summary.epochs} epochs with one leader each, {summary.log_bytes} equal bytes of log"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
