"""Every method of kafkajs's Admin, by a program that has a row for each
(javascript/admin_calls.js).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.clients.admin.subjects import Subjects
from tests.clients.admin.table import Report, expected_outcomes, read_report
from tests.clients.admin.toolchains import node_modules

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

CLIENT: Final = "kafkajs"
PACKAGE: Final = Path(__file__).with_name("javascript")
OUTCOMES: Final = expected_outcomes(
    """
    connect createTopics deleteTopics listTopics fetchTopicMetadata createPartitions
    deleteTopicRecords fetchTopicOffsets fetchTopicOffsetsByTimestamp
    describeCluster describeConfigs alterConfigs
    fetchOffsets setOffsets resetOffsets listGroups describeGroups deleteGroups
    alterPartitionReassignments listPartitionReassignments
    """,
    local="disconnect on logger",
    SECURITY_DISABLED="createAcls describeAcls deleteAcls",
)


@pytest.fixture(scope="module")
def report(bootstrap: str) -> Report:
    """What the program printed."""
    folder = node_modules(PACKAGE)
    counted = iter(range(1_000_000))
    subjects = Subjects(bootstrap, lambda stem: f"for-js-{stem}-{next(counted)}")
    topic = subjects.topic()
    with subjects.member(topic) as group:
        command = ["node", str(PACKAGE / "admin_calls.js"), bootstrap, group, topic]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return read_report(done.stdout)


def test_each_method_has_a_row(report: Report) -> None:
    assert report.methods == set(OUTCOMES)


@pytest.mark.parametrize("method", list(OUTCOMES))
def test_call(report: Report, method: str) -> None:
    assert report.outcomes[method] == OUTCOMES[method]
