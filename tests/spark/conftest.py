"""One Spark session for all tests of this folder, and a broker for it to read."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pytest

from kbroker.testing import EmbeddedBroker
from kbroker.testing.process import BrokerProcess
from scripts.apache_kafka import ApacheKafka
from scripts.spark_classes import jvm_options
from spark_jobs.java import java_problem
from spark_jobs.lake.formats import FORMATS, with_lake
from spark_jobs.session import open_session
from spark_jobs.wire.client import BlockingClient, ClusterAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count()

os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options())
SETTINGS: Final = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the broker under test: kbroker, Apache Kafka with KBROKER_TEST_BROKER=kafka, one
    that runs with KBROKER_TEST_BOOTSTRAP.
    """
    elsewhere = os.environ.get("KBROKER_TEST_BOOTSTRAP")
    if elsewhere:
        yield elsewhere
        return
    # The records carry times of 2023: with the default retention they would be deleted under the
    # test.
    overrides = {"log.retention.ms": "-1"}
    is_kafka = os.environ.get("KBROKER_TEST_BROKER") == "kafka"
    make = ApacheKafka if is_kafka else BrokerProcess
    with make(tmp_path_factory.mktemp("spark") / "data", overrides=overrides) as broker:
        yield broker.bootstrap_servers


LAKE_SETTINGS: Final = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.iceberg.locality.enabled": "false",
}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for tests that kill it."""
    overrides = {"log.retention.ms": "-1"}
    with BrokerProcess(tmp_path_factory.mktemp("mortal") / "data", overrides=overrides) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A local session with the Kafka source; the tests are skipped, with the reason, where Java is
    missing. With the formats of tables too if a test of this run takes `lake_spark`: a process has
    one session.
    """
    problem = java_problem()
    if problem is not None:
        pytest.skip(problem)
    settings = dict(SETTINGS)
    if any("lake_spark" in getattr(item, "fixturenames", ()) for item in request.session.items):
        settings = with_lake(settings | LAKE_SETTINGS, *FORMATS.values())
    with open_session("kbroker tests", settings) as session:
        yield session


@pytest.fixture
def lake_spark(spark: SparkSession) -> SparkSession:
    """The session, which can write tables of Delta Lake and Iceberg."""
    return spark


@pytest.fixture
def new_topic(bootstrap: str) -> Callable[[int], str]:
    """Make a topic of so many partitions; gives its name."""
    return lambda partitions: _make_topic(bootstrap, partitions)


@pytest.fixture
def new_mortal_topic(mortal: BrokerProcess) -> Callable[[int], str]:
    """As `new_topic`, of the broker that is killed."""
    return lambda partitions: _make_topic(mortal.bootstrap_servers, partitions)


def _make_topic(bootstrap: str, partitions: int) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"spark-{os.getpid()}-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    return name


@pytest.fixture
def client(kafka_broker: EmbeddedBroker) -> Iterator[BlockingClient]:
    """Of a broker in this process."""
    made = BlockingClient(ClusterAddress(kafka_broker.bootstrap_servers))
    yield made
    made.close()
