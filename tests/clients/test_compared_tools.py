"""Kafka's tools print against kbroker what they print against Apache Kafka 4.3.1, line by line.

The commands are rows of tests/clients/compared; what they print against Kafka was recorded by
`python -m tests.reference.record_tools`. Where kbroker differs on purpose, the row says how and
why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import unified_diff
from pathlib import Path

import pytest

from spark_jobs.java import java_problem
from tests.clients.compared.nodes import NewWorld, kbroker
from tests.clients.compared.recording import expected, read, without_own
from tests.clients.compared.row import Row, Session
from tests.clients.compared.run import Output, run_session
from tests.clients.compared.sessions import SESSIONS
from tests.clients.kafka_tools import KafkaTools

pytestmark = [
    pytest.mark.clients,
    # the first row of a session runs all of them
    pytest.mark.timeout(400),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
    # What the clients themselves warn of is not ours to mend.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

Outputs = Callable[[Session], dict[str, Output]]


@pytest.fixture(scope="module")
def new_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    with kbroker(tmp_path_factory.mktemp("compared")) as new:
        yield new


@pytest.fixture(scope="module")
def outputs(
    new_world: NewWorld, kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory
) -> Outputs:
    """What the rows of a session print; it runs once."""
    known: dict[str, dict[str, Output]] = {}

    def run(session: Session) -> dict[str, Output]:
        if session.name not in known:
            folder: Path = tmp_path_factory.mktemp(session.name)
            known[session.name] = run_session(session, kafka_tools, new_world(folder))
        return known[session.name]

    return run


def table() -> Iterator[object]:
    for session in SESSIONS.values():
        marks = [pytest.mark.slow] if session.slow else []
        for row in session.rows:
            yield pytest.param(session, row, id=f"{session.name}: {row.name}", marks=marks)


@pytest.mark.parametrize(("session", "row"), list(table()))
def test_the_tool_prints_the_same(session: Session, row: Row, outputs: Outputs) -> None:
    recorded = read(session.name)
    assert row.name in recorded, "not recorded yet: python -m tests.reference.record_tools"
    printed = without_own(outputs(session)[row.name], row.differs)
    wanted = expected(recorded[row.name], row.differs)
    assert printed == wanted, "\n".join(
        line
        for stream in ("out", "err")
        for line in unified_diff(wanted[stream], printed[stream], "Kafka", "kbroker", lineterm="")
    )
