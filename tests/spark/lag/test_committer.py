"""Commits to a group: again and again, with a broker that is down, with members in the group."""

from __future__ import annotations

import logging

import pytest

from kbroker.protocol.apis import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from spark_jobs.errors import JobError, StartRefused
from spark_jobs.lag.committer import RENEW_S, Committer, Trouble
from tests.spark.lag.group_cluster import GroupCluster


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_jobs.lag.committer")


@pytest.fixture
def committer(cluster: GroupCluster) -> Committer:
    return Committer(cluster.client(retry_timeout_s=10.0), "g")


def test_batch_by_batch(cluster: GroupCluster, committer: Committer) -> None:
    committer.check()
    assert committer.commit({"t": {0: 4}})
    assert committer.commit({"t": {0: 9, 1: 2}})
    assert cluster.offsets == {"g": {"t": {0: 9, 1: 2}}}
    assert committer.trouble is None


def test_what_has_not_changed_is_committed_again_before_it_expires(
    cluster: GroupCluster, committer: Committer
) -> None:
    for _ in range(3):
        assert committer.commit({"t": {0: 4}})
    assert cluster.requests.count(ApiKey.OFFSET_COMMIT) == 1
    cluster.clock.now += RENEW_S
    assert committer.commit({"t": {0: 4}})
    assert cluster.requests.count(ApiKey.OFFSET_COMMIT) == 2


def test_a_restart_does_not_move_the_group_back(
    cluster: GroupCluster, committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch that a crash repeats, and a new checkpoint that begins at the first offset."""
    committer.commit({"t": {0: 50, 1: 60}})
    later = Committer(cluster.client(), "g")
    for end in (10, 50, 55):
        assert later.commit({"t": {0: end, 1: 60}})
        assert cluster.offsets["g"]["t"] == {0: max(end, 50), 1: 60}
    assert [record.message for record in caplog.records] == [
        "group g is further than the query in t-0 and 0 more partitions: it is not moved back, and "
        "moves on when the query has read as far"
    ]


def test_a_topic_that_was_created_again(
    cluster: GroupCluster, committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.offsets["g"] = {"t": {0: 500, 1: 7}}
    assert committer.commit({"t": {0: 10, 1: 20}})
    assert cluster.offsets["g"]["t"] == {0: 10, 1: 20}
    assert "the offsets of t-0 were behind the end of the topic" in caplog.text


def test_a_response_that_is_lost_is_no_harm(cluster: GroupCluster, committer: Committer) -> None:
    for what in ("request", "response"):
        cluster.lose(ApiKey.OFFSET_COMMIT, what)
        cluster.lose(ApiKey.OFFSET_FETCH, what)
    cluster.fail(ApiKey.OFFSET_FETCH, ErrorCode.NOT_COORDINATOR)
    assert committer.commit({"t": {0: 4}})
    assert cluster.offsets["g"]["t"] == {0: 4}
    assert committer.trouble is None


def test_a_broker_that_is_down_is_reported_once(
    cluster: GroupCluster, committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    assert committer.commit({"t": {0: 4}})
    cluster.fail(ApiKey.OFFSET_COMMIT, ErrorCode.COORDINATOR_NOT_AVAILABLE, 1000)
    for end in (5, 6, 7):
        before = cluster.clock.now
        assert not committer.commit({"t": {0: end}})
        assert cluster.clock.now - before < 11
    assert committer.trouble is Trouble.FAILED
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.message.startswith("group g: offsets cannot be committed (COORDINATOR_NOT_AVAIL")
    assert said.message.endswith("; the query goes on, and they are committed once that works")
    cluster.faults.clear()
    assert committer.commit({"t": {0: 8}})
    assert (cluster.offsets["g"]["t"], committer.trouble) == ({0: 8}, None)
    assert caplog.records[-1].message == "group g: offsets are committed again"
    assert len(caplog.records) == 2


def test_no_broker_at_all(
    cluster: GroupCluster, committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    client = committer._client

    def refuse(host: str, port: int, timeout_s: float) -> None:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{host}:{port}: Connection refused")

    connect, client._connect = client._connect, refuse  # type: ignore[assignment]
    committer.check()
    assert not committer.commit({"t": {0: 4}})
    assert len(caplog.records) == 1
    assert "no broker answers: broker:9092: Connection refused" in caplog.text
    client._connect = connect
    assert committer.commit({"t": {0: 4}})


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_group_with_live_members_is_refused(
    cluster: GroupCluster, committer: Committer, kind: str
) -> None:
    cluster.kinds["g"] = kind
    cluster.members["g"] = ["app-1", "app-2", "app-3", "app-4"]
    with pytest.raises(StartRefused) as caught:
        committer.check()
    host = "host" if kind == "classic" else "h"
    assert str(caught.value) == (
        f"group g has live members (app-1 at {host}, app-2 at {host}, app-3 at {host} and 1 more): "
        "their offsets would be overwritten. Stop them, or choose another group"
    )


def test_a_share_group_is_refused(cluster: GroupCluster, committer: Committer) -> None:
    cluster.kinds["g"] = "share"
    with pytest.raises(StartRefused, match="is a share group, which has no committed offsets"):
        committer.check()


def test_a_group_that_may_not_be_described(cluster: GroupCluster, committer: Committer) -> None:
    cluster.fail(ApiKey.DESCRIBE_GROUPS, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(JobError, match="group g: GROUP_AUTHORIZATION_FAILED"):
        committer.check()


def test_brokers_that_know_only_classic_groups(cluster: GroupCluster, committer: Committer) -> None:
    for api_key in (
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.SHARE_GROUP_DESCRIBE,
    ):
        cluster.max_version[api_key] = -1
    committer.check()
    assert committer.commit({"t": {0: 4}})


def test_members_that_come_while_the_query_runs(
    cluster: GroupCluster, committer: Committer, caplog: pytest.LogCaptureFixture
) -> None:
    assert committer.commit({"t": {0: 4}})
    cluster.members["g"] = ["app"]
    for end in (5, 6):
        assert not committer.commit({"t": {0: end}})
    assert (cluster.offsets["g"]["t"], committer.trouble) == ({0: 4}, Trouble.REFUSED)
    (said,) = caplog.records
    assert said.message.startswith("group g has live members (app at host): ")
    assert "; the query goes on, and its offsets are committed once they have left" in said.message
    cluster.members.clear()
    assert committer.commit({"t": {0: 7}})
    assert cluster.offsets["g"]["t"] == {0: 7}
