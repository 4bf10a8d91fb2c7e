"""A broker in a process of its own, as a stranger would start it, for clients from outside.

With KBROKER_TEST_BOOTSTRAP=host:port the same tests run against another broker, such as a real
Apache Kafka.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from kbroker.testing.process import BrokerProcess

_numbers = itertools.count()


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the broker under test."""
    elsewhere = os.environ.get("KBROKER_TEST_BOOTSTRAP")
    if elsewhere:
        yield elsewhere
        return
    # The records carry times of 2023: with the default retention they would be deleted under the
    # test.
    overrides = {"group.initial.rebalance.delay.ms": "0", "log.retention.ms": "-1"}
    with BrokerProcess(tmp_path_factory.mktemp("clients") / "data", overrides=overrides) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names of topics and groups that no other test uses, also not in another run against the same
    broker.
    """

    def name(stem: str) -> str:
        return f"{stem}-{os.getpid()}-{next(_numbers)}"

    return name
