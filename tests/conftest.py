"""Hypothesis profiles, the order of the files, what other projects' clients leave, and the running
broker.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

    from kbroker.testing import EmbeddedBroker
    from tests.clients.kafka_tools import KafkaTools

settings.register_profile(
    "quick",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

SLOW_TIMEOUT_S: Final = 1_800
"""Of a slow test that names no other, on a machine that does other work too."""

HANDLERS: Final = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Those of a process that has just begun."""


def heed_signals() -> None:
    """Some CI starts its commands with SIGINT and SIGTERM ignored or blocked, which every process
    inherits; the tests send them, to themselves and to what they start.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLERS)
    for number, handler in HANDLERS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


heed_signals()

LONG_FILES: Final = (
    "spark/test_archive.py",
    "simulation/test_run.py",
    "cluster/test_rounds.py",
    "sim/test_replication.py",
    "sim/test_two_brokers.py",
    "clients/test_broker_cluster.py",
    "e2e/test_transaction_versions.py",
    "clients/test_forwarding.py",
    "clients/test_compared_tools.py",
    "exactly_once/test_kills.py",
    "node/loop/test_garbage.py",
    "clients/test_streams.py",
    "clients/test_readme.py",
    "documents/test_examples.py",
    "node/broker/test_replication.py",
    "sim/test_quorum.py",
    "e2e/test_kill.py",
    "e2e/test_memory.py",
    "cli/test_document.py",
    "clients/test_consumer_protocol.py",
    "clients/test_share_groups.py",
    "e2e/test_retries.py",
    "e2e/test_transaction_kills.py",
    "e2e/test_fuzz.py",
    "e2e/test_start_interrupted.py",
    "clients/test_quota_admin.py",
)
"""Files of few tests that take the longest, the longest first."""
SPARK_FILES: Final = frozenset(
    {
        "tests/spark/aggregate/test_job.py",
        "tests/spark/archive/test_decoding.py",
        "tests/spark/archive/test_kills.py",
        "tests/spark/archive/test_spark_parquet.py",
        "tests/spark/compact/test_tables.py",
        "tests/spark/copying/test_kills.py",
        "tests/spark/data_source/test_source.py",
        "tests/spark/dedupe/test_job.py",
        "tests/spark/dlq/test_job.py",
        "tests/spark/exactly_once/test_frames.py",
        "tests/spark/exactly_once/test_sink.py",
        "tests/spark/exactly_once/test_spark_partitioner.py",
        "tests/spark/lag/test_spark_queries.py",
        "tests/spark/mirror/test_job.py",
        "tests/spark/restore/test_job.py",
        "tests/spark/test_archive.py",
        "tests/spark/test_bad_input.py",
        "tests/spark/test_copying_docs.py",
        "tests/spark/test_docs.py",
        "tests/spark/table/test_job.py",
        "tests/spark/test_kafka_source.py",
        "tests/spark/test_leader_kills.py",
        "tests/spark/test_lake_archive.py",
        "tests/spark/test_running_changes.py",
        "tests/spark/test_source_guide.py",
        "tests/spark/test_tables_docs.py",
        "tests/spark/test_worker.py",
        "tests/spark/verify/test_job.py",
    }
)
"""Files that go to one worker together: a session of Spark costs more than what they do with it."""

SPREAD_TESTS: Final = (
    "tests/sim/test_quorum.py::test_the_invariants_hold_for_many_seeds",
    "tests/sim/test_replication.py::test_nothing_acknowledged_is_lost_in_many_seeds",
    "tests/simulation/test_run.py::test_no_anomaly_in_many_seeds",
)
"""Tests whose parameters go to workers one by one: all in one file, they take hours of CPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the long files: a worker that got one last would work alone at the end. Slow tests
    have more time than others.
    """
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    order = {name: place for place, name in enumerate(LONG_FILES)}

    def place(item: pytest.Item) -> int:
        return order.get("/".join(item.path.parts[-2:]), len(order))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """20,000 tests and all modules are 300 MB of objects that live to the end. The collector of
    garbage does not visit them, neither while they are made nor in any test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Under --dist loadfile, whole files to each worker, those of Spark to one, and the parts of
    `SPREAD_TESTS` to all.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if nodeid.startswith(SPREAD_TESTS):
                return nodeid
            return "spark" if file in SPARK_FILES else file

    return Scheduling(config, log)


def ignores_open_sockets(item: pytest.Item) -> bool:
    """Whether a test uses a client of another project that leaves sockets open: its filter says
    so.
    """
    filters = [mark.args[0] for mark in item.iter_markers("filterwarnings")]
    return "ignore" in filters or "ignore::ResourceWarning" in filters


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Free sockets in reference cycles while the filter of the test that left them still holds: a
    later collection would blame an unrelated test.
    """
    if ignores_open_sockets(item) and not (nextitem and ignores_open_sockets(nextitem)):
        gc.collect()


@pytest.fixture(autouse=True)
def default_signal_handlers() -> Iterator[None]:
    """Each test begins with them, whatever a session of Spark has set, and fails if it leaves
    others: a later one that sends a signal would fail instead, in another file.
    """
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)
    yield
    assert {number: signal.getsignal(number) for number in HANDLERS} == HANDLERS


@pytest.fixture(scope="session")
def kafka_tools() -> Iterator[KafkaTools]:
    """Apache Kafka's own tools; needs Java."""
    from tests.clients.kafka_tools import KafkaTools

    with KafkaTools() as tools:
        yield tools


@pytest.fixture(scope="module")
def kafka_broker() -> Iterator[EmbeddedBroker]:
    """As the plugin's, which lives for the whole session. Tests of other modules replace functions
    of `os` by ones that fail: a broker of this process that is alive meanwhile would lose its disk.
    """
    from kbroker.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker
