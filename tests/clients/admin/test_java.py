"""Every method of Kafka's own Admin (Java), by a program that has a row for each
(java/AdminCalls.java).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from scripts.kafka_jars import broker_class_path
from spark_jobs.java import java_problem
from tests.clients.admin.subjects import Subjects
from tests.clients.admin.table import Report, expected_outcomes, read_report
from tests.clients.java_classes import classes_of, has_compiler

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.skipif(java_problem() is not None, reason=java_problem() or ""),
    pytest.mark.skipif(not has_compiler(), reason="needs a Java compiler (javac)"),
]

CLIENT: Final = "Apache Kafka's Admin (Java)"
SOURCE: Final = Path(__file__).with_name("java") / "AdminCalls.java"
OUTCOMES: Final = expected_outcomes(
    """
    createTopics deleteTopics listTopics describeTopics createPartitions deleteRecords listOffsets
    alterPartitionReassignments listPartitionReassignments
    describeConfigs incrementalAlterConfigs listConfigResources listClientMetricsResources
    alterClientQuotas describeClientQuotas
    describeCluster describeFeatures updateFeatures describeMetadataQuorum
    describeLogDirs describeReplicaLogDirs alterReplicaLogDirs
    listGroups listConsumerGroups describeConsumerGroups describeClassicGroups deleteConsumerGroups
    listConsumerGroupOffsets alterConsumerGroupOffsets deleteConsumerGroupOffsets
    removeMembersFromConsumerGroup
    describeShareGroups alterShareGroupOffsets listShareGroupOffsets deleteShareGroupOffsets
    deleteShareGroups
    describeStreamsGroups alterStreamsGroupOffsets listStreamsGroupOffsets
    deleteStreamsGroupOffsets deleteStreamsGroups
    describeProducers describeTransactions listTransactions abortTransaction fenceProducers
    forceTerminateTransaction
    alterUserScramCredentials describeUserScramCredentials clientInstanceId
    """,
    local="metrics registerMetricForSubscription unregisterMetricFromSubscription close",
    ELECTION_NOT_NEEDED="electLeaders",
    BROKER_ID_NOT_REGISTERED="unregisterBroker",
    SECURITY_DISABLED="createAcls describeAcls deleteAcls",
    DUPLICATE_VOTER="addRaftVoter",
    VOTER_NOT_FOUND="removeRaftVoter",
    # they are not announced
    UNSUPPORTED_VERSION="""
    createDelegationToken renewDelegationToken expireDelegationToken describeDelegationToken
    """,
)


@pytest.fixture(scope="module")
def report(bootstrap: str) -> Report:
    """What the program printed."""
    java = shutil.which("java")
    assert java is not None
    counted = iter(range(1_000_000))
    subjects = Subjects(bootstrap, lambda stem: f"for-java-{stem}-{next(counted)}")
    topic = subjects.topic(records=5)
    group = subjects.streams_group(topic)
    jars = broker_class_path()
    jars = os.pathsep.join(str(jar) for jar in Path(jars).parent.glob("*.jar"))
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]
    command += [os.pathsep.join((classes_of(SOURCE, jars), jars)), "AdminCalls"]
    done = subprocess.run(
        [*command, bootstrap, group, topic], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return read_report(done.stdout)


def test_each_method_has_a_row(report: Report) -> None:
    assert report.methods == set(OUTCOMES)


@pytest.mark.parametrize("method", list(OUTCOMES))
def test_call(report: Report, method: str) -> None:
    assert report.outcomes[method] == OUTCOMES[method]
