"""One broker for the tables of all AdminClients: two log directories, a transaction log that is
quick to abort, and metrics of clients asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kbroker.testing.process import BrokerProcess


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the broker under test; with KBROKER_TEST_BOOTSTRAP another broker, which needs
    node id 1 and two log directories.
    """
    elsewhere = os.environ.get("KBROKER_TEST_BOOTSTRAP")
    if elsewhere:
        yield elsewhere
        return
    folder = tmp_path_factory.mktemp("admin")
    overrides = {
        "log.dirs": f"{folder / 'one'},{folder / 'two'}",
        "group.initial.rebalance.delay.ms": "0",
        "log.retention.ms": "-1",
        "kbroker.metrics.listener": "127.0.0.1:0",
        "kbroker.telemetry.receiver": "metrics",
    }
    with BrokerProcess(folder / "one", overrides=overrides) as broker:
        yield broker.bootstrap_servers
