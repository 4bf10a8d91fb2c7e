"""Formatting, and what is said about directories that are not (or not only) this node's."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from random import Random

import pytest

from kbroker.model import StartupError, uuid_to_string
from kbroker.quorum.bootstrap import default_bootstrap_records
from kbroker.quorum.format import (
    ensure_formatted,
    format_directories,
    load_bootstrap_records,
    static_voters,
)
from kbroker.quorum.meta_properties import read_meta_properties
from kbroker.quorum.snapshots import read_snapshot
from kbroker.settings.broker import BrokerConfig

CLUSTER = "kbrokerFixtures43100-w"
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
    assert stat.S_IMODE(bootstrap.stat().st_mode) == 0o400
    voters = read_snapshot(directory / "__cluster_metadata-0" / FIRST)
    assert voters.records == []
    assert voters.configuration.kraft_version == 1
    assert [voter.id for voter in voters.configuration.voters] == [1]
    assert voters.configuration.voters[0].directory_id == properties.log_directory_ids[0]


def test_a_second_look_changes_nothing(tmp_path: Path) -> None:
    first = ensure_formatted(config(tmp_path / "a", tmp_path / "b"), Random(1))
    assert len(set(first.log_directory_ids)) == 2
    assert ensure_formatted(config(tmp_path / "a", tmp_path / "b"), Random(2)) == first


def test_a_new_directory_joins(tmp_path: Path) -> None:
    first = ensure_formatted(config(tmp_path / "a"), Random(1))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".lock").touch()
    (tmp_path / "b" / "lost+found").mkdir()
    both = ensure_formatted(config(tmp_path / "a", tmp_path / "b"), Random(2))
    assert both.cluster_id == first.cluster_id
    assert not (tmp_path / "b" / "bootstrap.checkpoint").exists()


def test_metadata_in_a_directory_of_its_own(tmp_path: Path) -> None:
    both = config(tmp_path / "data", metadata_log_dir=str(tmp_path / "meta"))
    properties = ensure_formatted(both, Random(1))
    assert (tmp_path / "meta" / "__cluster_metadata-0" / FIRST).exists()
    assert not (tmp_path / "data" / "__cluster_metadata-0").exists()
    assert properties.log_directory_ids == (properties.directory_ids[str(tmp_path / "data")],)
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
    assert voters[0].directory_id == properties.log_directory_ids[0]


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


def test_odd_cluster_ids_survive_the_file(tmp_path: Path) -> None:
    lines = format_directories(config(tmp_path), cluster_id="a:b=c\\d", random=Random(1))
    assert lines == [
        f"Formatting dynamic metadata voter directory {tmp_path} with metadata.version 4.3-IV0."
    ]
    properties = read_meta_properties(tmp_path)
    assert properties is not None
    assert properties.cluster_id == "a:b=c\\d"


def test_format_by_hand(tmp_path: Path) -> None:
    both = config(tmp_path / "a", tmp_path / "b")
    assert format_directories(both, cluster_id=CLUSTER, random=Random(1)) == [
        f"Formatting data directory {tmp_path / 'b'} with metadata.version 4.3-IV0.",
        f"Formatting dynamic metadata voter directory {tmp_path / 'a'} with metadata.version "
        "4.3-IV0.",
    ]
    with pytest.raises(StartupError, match=r"already formatted\. Use --ignore-formatted"):
        format_directories(both, cluster_id=CLUSTER, random=Random(1))
    assert format_directories(
        both, cluster_id=CLUSTER, ignore_formatted=True, random=Random(1)
    ) == ["All of the log directories are already formatted."]
    with pytest.raises(StartupError, match="belongs to another cluster"):
        format_directories(both, cluster_id="other", ignore_formatted=True, random=Random(1))


@pytest.mark.parametrize("cluster_id", ["", " x", "x" * 256])
def test_bad_cluster_ids(tmp_path: Path, cluster_id: str) -> None:
    with pytest.raises(StartupError, match="cluster id"):
        format_directories(config(tmp_path), cluster_id=cluster_id, random=Random(1))


def test_a_static_quorum_has_no_first_snapshot(tmp_path: Path) -> None:
    static = config(
        tmp_path,
        process_roles="broker,controller",
        controller_quorum_voters="1@localhost:9093",
        controller_listener_names="CONTROLLER",
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
    )
    assert [voter.id for voter in static_voters(static)] == [1]
    lines = format_directories(static, cluster_id=CLUSTER, random=Random(1))
    assert lines == [f"Formatting metadata directory {tmp_path} with metadata.version 4.3-IV0."]
    assert not (tmp_path / "__cluster_metadata-0").exists()
    shutil.rmtree(tmp_path)
    with pytest.raises(StartupError, match="cannot be formatted as standalone"):
        format_directories(static, cluster_id=CLUSTER, standalone=True, random=Random(1))


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"log directory .*file/below"):
        ensure_formatted(config(tmp_path / "file" / "below"), Random(1))
