"""The pytest plugin: fixtures of brokers in this process.

`kafka_broker`: one `EmbeddedBroker` for the whole session. `kafka_topic`: the name of a fresh topic
of one partition on it, for one test. `kafka_cluster`: an `EmbeddedCluster` of three brokers for the
whole session, all of which run when a test begins. The broker is only imported when a test uses a
fixture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kbroker.testing.embedded import EmbeddedBroker
    from kbroker.testing.embedded_cluster import EmbeddedCluster


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[EmbeddedBroker]:
    """A running broker; `kafka_broker.bootstrap_servers` is its address."""
    from kbroker.testing.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def _kafka_topic_numbers() -> Iterator[int]:
    return count(1)


@pytest.fixture
def kafka_topic(
    kafka_broker: EmbeddedBroker,
    _kafka_topic_numbers: Iterator[int],
    request: pytest.FixtureRequest,
) -> str:
    """A fresh topic for this test: one partition, default settings."""
    test_name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:150].strip("-")
    return kafka_broker.create_topic(f"{test_name}-{next(_kafka_topic_numbers)}")


@pytest.fixture(scope="session")
def _kafka_cluster() -> Iterator[EmbeddedCluster]:
    from kbroker.testing.embedded_cluster import EmbeddedCluster

    with EmbeddedCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def kafka_cluster(_kafka_cluster: EmbeddedCluster) -> EmbeddedCluster:
    """A cluster of three brokers. Nodes that an earlier test has killed or stopped are started, and
    their replicas are in sync again.
    """
    _kafka_cluster.start_all()
    return _kafka_cluster
