"""Formatting, and what is said about directories that are not (or not only) this node's."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.metadata.records import decode_record
from kbroker.model import StartupError, uuid_to_string
from kbroker.quorum.disk.meta_properties import read_meta_properties
from kbroker.quorum.disk.snapshots import read_snapshot
from kbroker.quorum.formatting.bootstrap import default_bootstrap_records
from kbroker.quorum.formatting.format import (
    FormatOptions,
    ensure_formatted,
    format_directories,
    load_bootstrap_records,
    static_voters,
)
from kbroker.settings.broker import BrokerConfig

CLUSTER = "kbrokerFixtures43100-w"
RANDOM = Random(1)
FIRST = "00000000000000000000-0000000000.checkpoint"


def config(*directories: Path, **settings: str) -> BrokerConfig:
    properties = {key.replace("_", "."): value for key, value in settings.items()}
    properties.setdefault("node.id", "1")
    return BrokerConfig.from_properties({"log.dirs": ",".join(map(str, directories)), **properties})


def refused(*directories: Path, **settings: str) -> str:
    with pytest.raises(StartupError) as caught:
        ensure_formatted(config(*directories, **settings), Random(1))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_empty_directory_is_formatted(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there"
    properties = ensure_formatted(config(directory), Random(1))
    assert properties.node_id == 1
    assert len(properties.cluster_id) == 22
    lines = (directory / "meta.properties").read_text().splitlines()
    assert lines[0] == "#"
    assert lines[1].startswith("#") and lines[1].endswith("20" + lines[1][-2:])
    assert lines[2:] == [
        "node.id=1",
        f"directory.id={uuid_to_string(properties.directory_ids[str(directory)])}",
        "version=1",
        f"cluster.id={properties.cluster_id}",
    ]
    assert load_bootstrap_records(config(directory)) == default_bootstrap_records()
    bootstrap = directory / "bootstrap.checkpoint"
    assert bootstrap.stat().st_size == 411  # as Kafka's
    first = directory / "__cluster_metadata-0" / FIRST
    assert stat.S_IMODE(first.stat().st_mode) == 0o400
    voters = read_snapshot(directory / "__cluster_metadata-0" / FIRST)
    assert voters.records == []
    assert voters.configuration.kraft_version == 1
    assert [voter.id for voter in voters.configuration.voters] == [1]
    assert voters.configuration.voters[0].directory_id == properties.directory_ids[str(directory)]


def test_a_second_look_changes_nothing(tmp_path: Path) -> None:
    first = ensure_formatted(config(tmp_path / "a", tmp_path / "b"), Random(1))
    assert len(set(first.directory_ids.values())) == 2
    assert ensure_formatted(config(tmp_path / "a", tmp_path / "b"), Random(2)) == first


def test_a_new_directory_joins(tmp_path: Path) -> None:
    first = ensure_formatted(config(tmp_path / "a"), Random(1))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".lock").touch()
    (tmp_path / "b" / "lost+found").mkdir()
    both = ensure_formatted(config(tmp_path / "a", tmp_path / "b"), Random(2))
    assert both.cluster_id == first.cluster_id
    bootstrap = read_snapshot(tmp_path / "b" / "bootstrap.checkpoint")
    assert bootstrap.records == default_bootstrap_records()


def test_metadata_in_a_directory_of_its_own(tmp_path: Path) -> None:
    both = config(tmp_path / "data", metadata_log_dir=str(tmp_path / "meta"))
    properties = ensure_formatted(both, Random(1))
    assert (tmp_path / "meta" / "__cluster_metadata-0" / FIRST).exists()
    assert not (tmp_path / "data" / "__cluster_metadata-0").exists()
    assert set(properties.directory_ids) == {str(tmp_path / "data"), str(tmp_path / "meta")}
    shutil.rmtree(tmp_path / "meta")
    with pytest.raises(StartupError, match="is a disk not mounted"):
        ensure_formatted(both, Random(1))


def test_lost_meta_properties(tmp_path: Path) -> None:
    ensure_formatted(config(tmp_path), Random(1))
    (tmp_path / "meta.properties").unlink()
    (tmp_path / "topic-0").mkdir()
    message = refused(tmp_path)
    assert "has no meta.properties but is not empty (topic-0)" in message


def test_lost_meta_properties_of_a_cluster_without_topics(tmp_path: Path) -> None:
    ensure_formatted(config(tmp_path), Random(1))
    (tmp_path / "__cluster_metadata-0" / "00000000000000000000.log").touch()
    (tmp_path / "meta.properties").unlink()
    assert "is not empty (__cluster_metadata-0)" in refused(tmp_path)


def test_a_format_that_was_broken_off_is_done_again(tmp_path: Path) -> None:
    ensure_formatted(config(tmp_path), Random(1))
    (tmp_path / "meta.properties").rename(tmp_path / "meta.properties.tmp")
    (tmp_path / "__cluster_metadata-0" / f"{FIRST[:-11]}-1.checkpoint.part").write_bytes(b"half")
    properties = ensure_formatted(config(tmp_path), Random(2))
    voters = read_snapshot(tmp_path / "__cluster_metadata-0" / FIRST).configuration.voters
    assert voters[0].directory_id == properties.directory_ids[str(tmp_path)]


def test_another_node(tmp_path: Path) -> None:
    ensure_formatted(config(tmp_path), Random(1))
    assert "node.id=1, but this node is 2" in refused(tmp_path, node_id="2")


def test_another_cluster(tmp_path: Path) -> None:
    ensure_formatted(config(tmp_path / "a"), Random(1))
    ensure_formatted(config(tmp_path / "b"), Random(2))
    assert "belongs to another cluster" in refused(tmp_path / "a", tmp_path / "b")


def test_a_copied_directory(tmp_path: Path) -> None:
    ensure_formatted(config(tmp_path / "a"), Random(1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert "the same directory.id" in refused(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "understood is 1"),
        ("version=2\nnode.id=1\ncluster.id=x\ndirectory.id=imeMtvJjT-mRm2meW9xqpA\n", "version=2"),
        ("version=1\nnode.id=1\ncluster.id=x\n", "directory.id is missing"),
        ("version=1\nnode.id=one\ncluster.id=x\ndirectory.id=imeMtvJjT-mRm2meW9xqpA\n", "one"),
        ("version=1\nnode.id=1\ncluster.id=x\ndirectory.id=short\n", "not a Kafka uuid"),
        (
            "version=1\nnode.id=1\ncluster.id=x\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n",
            "is reserved",
        ),
        ("version=0\nbroker.id=1\ncluster.id=x\n", "with ZooKeeper"),
    ],
)
def test_bad_meta_properties(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "meta.properties").write_text(content)
    assert why in refused(tmp_path)


def by_hand(config: BrokerConfig, **options: Any) -> list[str]:
    return format_directories(config, FormatOptions(**options), random=RANDOM)


def not_by_hand(config: BrokerConfig, **options: Any) -> str:
    with pytest.raises(StartupError) as caught:
        by_hand(config, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def voters_of(directory: Path) -> tuple[int, list[str]]:
    """kraft.version and voters of the first snapshot."""
    found = read_snapshot(directory / "__cluster_metadata-0" / FIRST).configuration
    return found.kraft_version, [
        f"{voter.id}@{each.name}://{each.host}:{each.port}:{uuid_to_string(voter.directory_id)}"
        for voter in found.voters
        for each in voter.endpoints
    ]


def directory_id_of(directory: Path) -> str:
    properties = read_meta_properties(directory)
    assert properties is not None
    return uuid_to_string(properties.directory_id)


def test_odd_cluster_ids_survive_the_file(tmp_path: Path) -> None:
    lines = by_hand(config(tmp_path), cluster_id="a:b=c\\d")
    assert lines == [
        f"Formatting dynamic metadata voter directory {tmp_path} with metadata.version 4.3-IV0."
    ]
    properties = read_meta_properties(tmp_path)
    assert properties is not None
    assert properties.cluster_id == "a:b=c\\d"


def test_format_by_hand(tmp_path: Path) -> None:
    both = config(tmp_path / "a", tmp_path / "b")
    assert by_hand(both, cluster_id=CLUSTER) == [
        f"Formatting data directory {tmp_path / 'b'} with metadata.version 4.3-IV0.",
        f"Formatting dynamic metadata voter directory {tmp_path / 'a'} with metadata.version "
        "4.3-IV0.",
    ]
    assert "already formatted. Use --ignore-formatted" in not_by_hand(both, cluster_id=CLUSTER)
    assert by_hand(both, cluster_id=CLUSTER, ignore_formatted=True) == [
        "All of the log directories are already formatted."
    ]
    for ignore in (False, True):
        line = not_by_hand(both, cluster_id="other", ignore_formatted=ignore)
        assert "belongs to another cluster" in line
    other = config(tmp_path / "a", tmp_path / "b", node_id="2")
    line = not_by_hand(other, cluster_id=CLUSTER, ignore_formatted=True)
    assert "node.id=1, but this node is 2" in line


@pytest.mark.parametrize("cluster_id", ["", " x", "x" * 256])
def test_bad_cluster_ids(tmp_path: Path, cluster_id: str) -> None:
    assert "cluster id" in not_by_hand(config(tmp_path), cluster_id=cluster_id)


NODES = {
    "controller": {
        "process_roles": "controller",
        "listeners": "CONTROLLER://:9093",
        "controller_listener_names": "CONTROLLER",
    },
    "broker": {
        "process_roles": "broker",
        "listeners": "PLAINTEXT://:9092",
        "controller_listener_names": "CONTROLLER",
    },
    "both": {
        "process_roles": "broker,controller",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller_listener_names": "CONTROLLER",
    },
}
DYNAMIC = {"controller_quorum_bootstrap_servers": "a:9093"}
STATIC = {"controller_quorum_voters": "1@a:9093,2@b:9093"}
FIRST_ID, SECOND_ID = "JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A"


@pytest.mark.parametrize("role", ["controller", "both"])
@pytest.mark.parametrize(
    ("quorum", "node_id"), [(DYNAMIC, "1"), (STATIC, "1")], ids=["dynamic", "static"]
)
def test_among_several_nothing_is_formatted_by_itself(
    tmp_path: Path, role: str, quorum: dict[str, str], node_id: str
) -> None:
    """A voter that lost its disk could vote twice."""
    line = refused(tmp_path, **NODES[role], **quorum)
    command = "run `kbroker format CONFIGURATION --cluster-id ID"
    if quorum is DYNAMIC:
        command += " --no-initial-controllers` (in a new cluster --standalone or --initial-contr"
    assert command in line
    assert ("a voter that has lost its disk could vote twice in an epoch" in line) == (
        quorum is STATIC  # a dynamic quorum knows voters by their directory, too
    )
    assert not any(tmp_path.iterdir())


def test_an_emptied_voter_of_a_static_quorum_is_told_when_it_may_be_formatted(
    tmp_path: Path,
) -> None:
    line = refused(tmp_path, **NODES["controller"], **STATIC)
    assert "in a new cluster run `kbroker format CONFIGURATION --cluster-id ID` first; " in line
    assert "mount the disk that has its data; if there is none, run that command only after" in line
    assert line.endswith("a leader elected since the loss, and all other voters caught up with it")
    assert "\n" not in line


def test_the_command_for_a_new_disk_of_a_dynamic_controller_is_one_that_formats_it(
    tmp_path: Path,
) -> None:
    node = config(tmp_path / "a", **NODES["both"], **DYNAMIC)
    by_hand(node, cluster_id=CLUSTER, no_initial_controllers=True)
    line = refused(tmp_path / "a", tmp_path / "b", **NODES["both"], **DYNAMIC)
    options = f"--cluster-id {CLUSTER} --ignore-formatted --no-initial-controllers` first"
    assert options in line
    both = config(tmp_path / "a", tmp_path / "b", **NODES["both"], **DYNAMIC)
    asked = {"cluster_id": CLUSTER, "ignore_formatted": True, "no_initial_controllers": True}
    assert len(by_hand(both, **asked)) == 1


def test_a_broker_is_not_formatted_by_itself(tmp_path: Path) -> None:
    line = refused(tmp_path, **NODES["broker"], **STATIC, node_id="3")
    assert "kbroker format" in line
    assert not any(tmp_path.iterdir())


def test_a_disk_that_is_not_mounted_is_not_formatted_among_several(tmp_path: Path) -> None:
    node = config(tmp_path / "a", **NODES["both"], **STATIC)
    by_hand(node, cluster_id=CLUSTER)
    line = refused(tmp_path / "a", tmp_path / "b", **NODES["both"], **STATIC)
    assert f"--cluster-id {CLUSTER} --ignore-formatted` first, or mount the disk" in line
    both = config(tmp_path / "a", tmp_path / "b", **NODES["both"], **STATIC)
    assert len(by_hand(both, cluster_id=CLUSTER, ignore_formatted=True)) == 1
    assert ensure_formatted(both, Random(1)).cluster_id == CLUSTER


def test_the_only_static_voter_formats_itself(tmp_path: Path) -> None:
    alone = config(tmp_path, **NODES["controller"], controller_quorum_voters="1@a:9093")
    ensure_formatted(alone, Random(1))
    assert not (tmp_path / "__cluster_metadata-0").exists()


def test_a_static_quorum_has_no_first_snapshot(tmp_path: Path) -> None:
    static = config(tmp_path, **NODES["both"], **STATIC)
    assert [
        (voter.id, voter.endpoints[0].name, voter.endpoints[0].host)
        for voter in static_voters(static)
    ] == [(1, "CONTROLLER", "a"), (2, "CONTROLLER", "b")]
    for options in ({"standalone": True}, {"initial_controllers": f"1@a:9093:{FIRST_ID}"}):
        line = not_by_hand(static, cluster_id=CLUSTER, **options)
        assert line.startswith("You cannot specify controller.quorum.voters and format the node")
    assert by_hand(static, cluster_id=CLUSTER) == [
        f"Formatting metadata directory {tmp_path} with metadata.version 4.3-IV0."
    ]
    assert not (tmp_path / "__cluster_metadata-0").exists()


def test_a_cluster_of_several_needs_its_id(tmp_path: Path) -> None:
    for quorum in (DYNAMIC, STATIC):
        assert "--cluster-id" in not_by_hand(config(tmp_path, **NODES["both"], **quorum))


def test_a_controller_of_a_dynamic_quorum_must_know_the_voters(tmp_path: Path) -> None:
    for role in ("controller", "both"):
        line = not_by_hand(config(tmp_path, **NODES[role], **DYNAMIC), cluster_id=CLUSTER)
        assert line.startswith("Because controller.quorum.voters is not set on this controller")
    broker = config(tmp_path, **NODES["broker"], **DYNAMIC)
    assert not_by_hand(broker, cluster_id=CLUSTER, standalone=True) == (
        "You can only use --standalone on a controller."
    )
    assert by_hand(broker, cluster_id=CLUSTER) == [
        f"Formatting metadata directory {tmp_path} with metadata.version 4.3-IV0."
    ]
    assert not (tmp_path / "__cluster_metadata-0").exists()


def test_standalone(tmp_path: Path) -> None:
    node = config(tmp_path, **NODES["controller"], **DYNAMIC)
    by_hand(node, cluster_id=CLUSTER, standalone=True)
    own = directory_id_of(tmp_path)
    assert voters_of(tmp_path) == (1, [f"1@CONTROLLER://localhost:9093:{own}"])
    assert ensure_formatted(node, Random(1)).cluster_id == CLUSTER
    advertised = config(
        tmp_path / "b",
        **NODES["both"],
        **DYNAMIC,
        advertised_listeners="PLAINTEXT://p:1,CONTROLLER://c:2",
    )
    by_hand(advertised, cluster_id=CLUSTER, standalone=True)
    own = directory_id_of(tmp_path / "b")
    assert voters_of(tmp_path / "b") == (1, [f"1@CONTROLLER://c:2:{own}"])


def test_initial_controllers(tmp_path: Path) -> None:
    text = f"2@b:9094:{SECOND_ID},1@a:9093:{FIRST_ID}"
    voters = [f"1@CONTROLLER://a:9093:{FIRST_ID}", f"2@CONTROLLER://b:9094:{SECOND_ID}"]
    names = {1: "dynamic metadata voter", 2: "dynamic metadata voter", 3: "dynamic metadata"}
    for number, kind in names.items():
        role = "broker" if number == 3 else "controller"
        directory = tmp_path / str(number)
        node = config(directory, **NODES[role], **DYNAMIC, node_id=str(number))
        assert by_hand(node, cluster_id=CLUSTER, initial_controllers=text) == [
            f"Formatting {kind} directory {directory} with metadata.version 4.3-IV0."
        ]
        assert voters_of(directory) == (1, voters)
    assert directory_id_of(tmp_path / "1") == FIRST_ID
    assert directory_id_of(tmp_path / "2") == SECOND_ID
    assert directory_id_of(tmp_path / "3") not in (FIRST_ID, SECOND_ID)


def test_no_initial_controllers(tmp_path: Path) -> None:
    node = config(tmp_path, **NODES["controller"], **DYNAMIC)
    assert by_hand(node, cluster_id=CLUSTER, no_initial_controllers=True) == [
        f"Formatting metadata directory {tmp_path} with metadata.version 4.3-IV0."
    ]
    assert not (tmp_path / "__cluster_metadata-0").exists()


def test_features_of_an_older_release(tmp_path: Path) -> None:
    lines = by_hand(
        config(tmp_path),
        cluster_id=CLUSTER,
        release_version="4.0",
        features=("transaction.version=1", "kraft.version=1"),
    )
    assert lines[0].endswith("with metadata.version 4.0-IV3.")
    levels = [decode_record(each) for each in load_bootstrap_records(config(tmp_path))]
    assert [(each.name, each.feature_level) for each in levels] == [
        ("metadata.version", 25),
        ("group.version", 1),
        ("transaction.version", 1),
    ]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"log directory .*file/below"):
        ensure_formatted(config(tmp_path / "file" / "below"), Random(1))
