"""Kafka Streams 4.3.1 against a broker: a word count with a repartition topic and a state store, as
a classic group and as a streams group (KIP-1071).
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.testing.process import BrokerProcess
from scripts.kafka_jars import tools_class_path
from tests.clients.adapters import wait_until
from tests.clients.streams_app import (
    PARTITIONS,
    Results,
    WordCount,
    compile_word_count,
    create_topics,
    produce_lines,
    streams_problem,
)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(streams_problem() is not None, reason=streams_problem() or ""),
]

OVERRIDES = {
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "200",
    "group.streams.heartbeat.interval.ms": "200",
    "group.streams.min.session.timeout.ms": "3000",
    "group.streams.session.timeout.ms": "3000",
    "group.streams.num.standby.replicas": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="module")
def classes() -> str:
    return compile_word_count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("streams") / "data", overrides=OVERRIDES) as one:
        yield one


@pytest.fixture
def run(
    broker: BrokerProcess, classes: str, new_name: Callable[[str], str], tmp_path: Path
) -> Iterator[Run]:
    one = Run(broker.bootstrap_servers, classes, new_name, tmp_path)
    yield one
    one.results.close()


class Run:
    """One application on topics of its own. expected: the words sent so far."""

    def __init__(
        self, bootstrap: str, classes: str, new_name: Callable[[str], str], folder: Path
    ) -> None:
        self.bootstrap, self.application = bootstrap, new_name("app")
        self._classes, self._folder = classes, folder
        self._source, self._sink = new_name("lines"), new_name("counts")
        create_topics(bootstrap, self._source, self._sink)
        self.expected: Counter[str] = Counter()
        self.results = Results(bootstrap, self._sink)

    def instance(self, name: str, protocol: str, guarantee: str, **settings: str) -> WordCount:
        options = {
            "application.id": self.application,
            "group.protocol": protocol,
            "processing.guarantee": guarantee,
            **settings,
        }
        return WordCount(
            self._classes, self.bootstrap, self._source, self._sink, self._folder / name, options
        )

    def send(self, numbers: range) -> None:
        self.expected += produce_lines(self.bootstrap, self._source, numbers)

    def check(self) -> None:
        """No word was counted too often."""
        self.results.read_rest()
        assert self.results.counts == self.expected


@pytest.mark.parametrize(
    ("protocol", "guarantee"),
    [
        ("classic", "exactly_once_v2"),
        pytest.param("classic", "at_least_once", marks=pytest.mark.slow),
        pytest.param("streams", "exactly_once_v2", marks=pytest.mark.slow),
    ],
)
def test_word_count(run: Run, protocol: str, guarantee: str) -> None:
    run.send(range(200))
    with run.instance("one", protocol, guarantee) as one:
        run.results.read_until(run.expected, one, timeout_s=60)
        assert one.stop() == 0
        assert one.states()[-1] == "NOT_RUNNING"
    run.check()


def streams_groups_tool(bootstrap: str, *arguments: str) -> str:
    """Kafka's kafka-streams-groups.sh; its output."""
    java = shutil.which("java")
    assert java is not None
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", tools_class_path()]
    command += ["org.apache.kafka.tools.streams.StreamsGroupCommand", "--bootstrap-server"]
    done = subprocess.run(
        [*command, bootstrap, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_kafkas_tool_sees_and_ends_the_group(run: Run) -> None:
    group = ("--group", run.application)
    run.send(range(200))
    with run.instance("one", "streams", "at_least_once") as one:
        run.results.read_until(run.expected, one, timeout_s=60)
        described = streams_groups_tool(run.bootstrap, "--describe", *group)
        rows = [line.split() for line in described.splitlines() if "-repartition" in line]
        assert sorted(row[2] for row in rows) == [str(number) for number in range(PARTITIONS)]
        members = streams_groups_tool(run.bootstrap, "--describe", "--members", *group)
        assert members.count("StreamThread-1") == 1
        assert one.stop() == 0
    run.check()
    streams_groups_tool(run.bootstrap, "--delete", *group)
    assert run.application not in streams_groups_tool(run.bootstrap, "--list")


def test_two_instances_one_is_killed(run: Run) -> None:
    """Each word is counted exactly once, by one instance or the other."""
    options = ("streams", "exactly_once_v2")
    settings = {"producer.transaction.timeout.ms": "2000"}
    run.send(range(100))
    with (
        run.instance("one", *options, **settings) as one,
        run.instance("two", *options, **settings) as two,
    ):
        run.results.read_until(run.expected, one, two, timeout_s=60)
        wait_until(
            lambda: all(app.states()[-1:] == ["RUNNING"] for app in (one, two)), 30, "running"
        )
        run.send(range(100, 150))
        one.kill()
        run.send(range(150, 250))
        run.results.read_until(run.expected, two, timeout_s=60)
        assert two.stop() == 0
    run.check()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_the_broker_is_killed(
    classes: str, new_name: Callable[[str], str], tmp_path: Path, protocol: str
) -> None:
    """Three times while the application counts; it goes on by itself."""
    with BrokerProcess(tmp_path / "data", overrides=OVERRIDES) as broker:
        run = Run(broker.bootstrap_servers, classes, new_name, tmp_path)
        run.send(range(100))
        with run.instance("one", protocol, "exactly_once_v2") as one:
            for number in range(1, 4):
                run.results.read_until(run.expected, one, timeout_s=60)
                broker.kill()
                broker.start()
                run.send(range(100 * number, 100 * number + 100))
            run.results.read_until(run.expected, one, timeout_s=60)
            assert one.stop() == 0
        run.check()
        run.results.close()
