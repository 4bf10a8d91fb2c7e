"""What Kafka's tools print against kbroker is compared with a recording; Apache Kafka 4.3.1 still
prints what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jobs.java import java_problem
from tests.clients.compared.nodes import NewWorld, kafka
from tests.clients.compared.recording import read
from tests.clients.compared.row import Session
from tests.clients.compared.run import run_session
from tests.clients.compared.sessions import SESSIONS
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(600),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def new_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with kafka(tmp_path_factory.mktemp("compared")) as new:
        yield new


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_kafka_prints_what_is_recorded(
    session: Session, new_world: NewWorld, kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    printed = run_session(session, kafka_tools, new_world(tmp_path), settles=True)
    recorded = read(session.name)
    assert printed.keys() == recorded.keys()
    for name, output in printed.items():
        assert output == recorded[name], name
