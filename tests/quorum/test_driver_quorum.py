"""Three drivers and more on real directories and real connections: elections, commits, failover,
fetched snapshots, changes of the voters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kbroker.node.loop.futures import as_future
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.quorum.disk.quorum_state_file import read_state, write_state
from kbroker.quorum.driver import SHUTDOWN_TIMEOUT_MS
from kbroker.quorum.raft.election_state import ElectionState
from tests.quorum.drivers import DriverCluster, DriverNode, directory_id

Script = Callable[[DriverCluster], Awaitable[None]]


def run(root: Path, script: Script, **shape: int) -> None:
    async def all_of_it() -> None:
        cluster = DriverCluster(root, **shape)
        await cluster.start()
        await script(cluster)
        cluster.kill()

    asyncio.run(all_of_it())


def test_a_killed_leader_is_replaced_and_committed_records_stay(tmp_path: Path) -> None:
    async def script(cluster: DriverCluster) -> None:
        first = await cluster.leader()
        await cluster.append(b"a", b"b")
        waiting = first.driver.append([b"lost or not"])
        first.kill()
        assert not waiting.done
        second = await cluster.leader()
        assert second is not first and second.driver.epoch > first.driver.epoch
        await cluster.append(b"c")
        assert second.values[:2] == [b"a", b"b"] and second.values[-1] == b"c"
        await first.start(cluster.nodes)
        await cluster.append(b"d")
        assert first.values == second.values
        paths = [node.root / "__cluster_metadata-0" / f"{0:020d}.log" for node in cluster.nodes]
        logs = [path.read_bytes() for path in paths]
        shortest = min(map(len, logs))
        assert logs[0][:shortest] == logs[1][:shortest] == logs[2][:shortest]

    run(tmp_path, script)


def test_a_leader_that_stops_names_its_successor(tmp_path: Path) -> None:
    async def script(cluster: DriverCluster) -> None:
        first = await cluster.leader()
        await cluster.append(b"a")
        begun = asyncio.get_running_loop().time()
        await first.stop()
        # it ended because it saw its successor, not because it waited long enough
        assert asyncio.get_running_loop().time() - begun < SHUTDOWN_TIMEOUT_MS / 1000
        assert first.lost == len(first.led)
        await cluster.append(b"b")
        for node in cluster.running:
            assert node.values == [b"a", b"b"] and node.driver.epoch > first.led[-1]

    run(tmp_path, script)


def test_a_follower_that_does_not_lead_refuses_to_append(tmp_path: Path) -> None:
    async def script(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        follower = next(node for node in cluster.nodes if node is not leader)
        await cluster.until(lambda: follower.driver.feed.leader[1] == leader.node_id)
        with pytest.raises(KafkaError) as refused:
            await as_future(follower.driver.append([b"x"]))
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert follower.driver.leader_endpoints == (leader.endpoint,)
        assert not follower.led

    run(tmp_path, script)


def test_a_follower_that_was_away_gets_a_snapshot(tmp_path: Path) -> None:
    async def script(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await cluster.append(b"a" * 200, b"b" * 200)
        away = next(node for node in cluster.nodes if node is not leader)
        away.kill()
        await cluster.append(b"c")
        # a single snapshot does not delete the log before it
        for value in (b"d", b"e"):
            driver = leader.driver
            written = driver.write_snapshot(
                end_offset=driver.high_watermark, epoch=driver.epoch, chunks=[leader.values]
            )
            await as_future(written)
            await cluster.append(value)
        log = away.root / "__cluster_metadata-0"
        await away.start(cluster.nodes)
        await cluster.append(b"f")
        assert away.values == leader.values and len(away.snapshots) == 1
        names = sorted(path.name for path in log.glob("*.checkpoint*"))
        assert len(names) == 1 and int(names[0][:20]) == away.snapshots[0]
        away.kill()
        await away.start(cluster.nodes)
        await cluster.append(b"g")
        assert away.values == leader.values and len(away.snapshots) == 2

    run(tmp_path, script)


def test_an_observer_follows_and_joins_the_voters_by_itself(tmp_path: Path) -> None:
    async def script(cluster: DriverCluster) -> None:
        observer = cluster.nodes[-1]
        await cluster.append(b"a")
        assert observer.driver.voter_ids == (1, 2)
        await observer.stop()
        await observer.start(cluster.nodes, auto_join=True)
        await cluster.until(lambda: observer.driver.voter_ids == (1, 2, 3))
        await cluster.append(b"b")
        assert observer.values == [b"a", b"b"]

    run(tmp_path, script, voters=2)


def test_a_static_quorum_is_upgraded_to_kraft_version_1(tmp_path: Path) -> None:
    """The voters' directory ids are in the log then, and hold after a restart of all nodes."""

    def may_upgrade(leader: DriverNode) -> bool:
        try:
            leader.driver.check_kraft_upgrade(1)
        except KafkaError as error:
            assert error.code is ErrorCode.INVALID_UPDATE_VERSION
            return False
        return True

    async def script(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        assert leader.driver.kraft_version == 0
        await cluster.until(lambda: may_upgrade(leader))
        leader.driver.upgrade_kraft_version(1)
        await cluster.append(b"a")
        assert [node.driver.kraft_version for node in cluster.nodes] == [1, 1, 1]
        cluster.kill()
        for node in cluster.nodes:
            await node.start(cluster.nodes)
        await cluster.append(b"b")
        for node in cluster.nodes:
            assert node.driver.kraft_version == 1
            assert node.driver.voter_ids == (1, 2, 3)
            assert node.values == [b"a", b"b"]

    run(tmp_path, script, is_static=True)


def test_a_node_that_voted_for_itself_and_is_not_a_voter_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(cluster: DriverCluster) -> None:
        await cluster.append(b"a")
        former = cluster.nodes[3]
        await former.stop()
        # as if it had been added, had stood for election, and lost the unsynced tail of its log
        epoch = (await cluster.leader()).driver.epoch
        vote = ElectionState(epoch, voted_id=4, voted_directory_id=directory_id(4))
        write_state(
            former.root / "__cluster_metadata-0", vote, kraft_version=1, voter_ids=(1, 2, 3)
        )
        await former.start(cluster.nodes)
        warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        (line,) = [each for each in warnings if "voted for itself" in each]
        assert line.startswith("Node 4: ") and "starts unattached" in line
        await cluster.append(b"b")
        assert former.values == [b"a", b"b"]
        state = read_state(former.root / "__cluster_metadata-0")
        assert state is not None and (state.epoch > epoch or state.voted_key == vote.voted_key)

    run(tmp_path, script, count=4)
