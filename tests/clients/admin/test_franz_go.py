"""Every method of franz-go's kadm.Client, by a program that has a row for each (go/main.go)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.clients.admin.subjects import Subjects
from tests.clients.admin.table import Report, expected_outcomes, read_report
from tests.clients.admin.toolchains import go_program

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

CLIENT: Final = "franz-go (kadm)"
MODULE: Final = Path(__file__).with_name("go")
OUTCOMES: Final = expected_outcomes(
    """
    CreateTopic CreateTopics ValidateCreateTopics DeleteTopic DeleteTopics ListTopics
    ListTopicsWithInternal CreatePartitions UpdatePartitions ValidateCreatePartitions
    ValidateUpdatePartitions DeleteRecords
    ListStartOffsets ListLocalLogStartOffsets ListEndOffsets ListCommittedOffsets
    ListLatestRemoteOffsets ListMaxTimestampOffsets ListOffsetsAfterMilli
    OffsetForLeaderEpoch OffetForLeaderEpoch
    AlterPartitionAssignments ListPartitionReassignments
    DescribeTopicConfigs DescribeBrokerConfigs
    AlterTopicConfigs AlterTopicConfigsState ValidateAlterTopicConfigs
    ValidateAlterTopicConfigsState
    AlterBrokerConfigs AlterBrokerConfigsState ValidateAlterBrokerConfigs
    ValidateAlterBrokerConfigsState
    ListConfigResources AlterClientQuotas ValidateAlterClientQuotas DescribeClientQuotas
    Metadata BrokerMetadata ListBrokers ApiVersions UpdateFeatures
    DescribeBrokerLogDirs DescribeAllLogDirs AlterBrokerReplicaLogDirs AlterAllReplicaLogDirs
    FindGroupCoordinators FindTxnCoordinators FindShareCoordinators
    ListGroups ListGroupsByType DescribeGroups DescribeConsumerGroups
    CommitOffsets CommitAllOffsets CommitOffsetsByID CommitAllOffsetsByID
    FetchOffsets FetchOffsetsByID FetchOffsetsForTopics FetchManyOffsets Lag DeleteOffsets
    DeleteGroup DeleteGroups LeaveGroup
    AlterShareGroupOffsets DescribeShareGroupOffsets DescribeShareGroups DeleteShareGroupOffsets
    DescribeProducers DescribeTransactions ListTransactions ListTransactionsByTxPattern
    WriteTxnMarkers
    AlterUserSCRAMs DescribeUserSCRAMs
    """,
    local="SetTimeoutMillis Close",
    ELECTION_NOT_NEEDED="ElectLeaders",
    SECURITY_DISABLED="CreateACLs DescribeACLs DeleteACLs",
    # they are not announced
    UNSUPPORTED_VERSION="""
    CreateDelegationToken RenewDelegationToken ExpireDelegationToken DescribeDelegationTokens
    """,
)


@pytest.fixture(scope="module")
def report(bootstrap: str) -> Report:
    """What the program printed."""
    program = go_program(MODULE)
    counted = iter(range(1_000_000))
    subjects = Subjects(bootstrap, lambda stem: f"for-go-{stem}-{next(counted)}")
    topic = subjects.topic()
    with (
        subjects.member(subjects.topic(), static=True) as classic,
        subjects.member(subjects.topic(), protocol="consumer") as consumer,
        subjects.transaction(topic) as transaction,
    ):
        command = [str(program), bootstrap, classic, consumer, transaction, topic]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return read_report(done.stdout)


def test_each_method_has_a_row(report: Report) -> None:
    assert report.methods == set(OUTCOMES)


@pytest.mark.parametrize("method", list(OUTCOMES))
def test_call(report: Report, method: str) -> None:
    assert report.outcomes[method] == OUTCOMES[method]
