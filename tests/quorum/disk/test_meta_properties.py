"""meta.properties: what is written can be read, and invalid files are reported in one line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.model import StartupError, uuid_from_string
from kbroker.quorum.disk.meta_properties import (
    META_PROPERTIES,
    CorruptMetaProperties,
    DirectoryProperties,
    read_meta_properties,
    write_meta_properties,
)

ID = "imeMtvJjT-mRm2meW9xqpA"
PROPERTIES = DirectoryProperties("cluster", 3, uuid_from_string(ID))
LINES = {"version": "1", "node.id": "3", "cluster.id": "cluster", "directory.id": ID}


def write(directory: Path, **changes: str | None) -> None:
    """A complete file with changes; None omits a line."""
    lines = {**LINES, **{name.replace("_", "."): value for name, value in changes.items()}}
    text = "".join(f"{name}={value}\n" for name, value in lines.items() if value is not None)
    (directory / META_PROPERTIES).write_text(text)


def test_the_bytes_are_those_of_javas_properties(tmp_path: Path) -> None:
    write_meta_properties(tmp_path, PROPERTIES, now_s=0)
    assert (tmp_path / META_PROPERTIES).read_bytes() == (
        b"#\n#Thu Jan 01 00:00:00 UTC 1970\n"
        b"node.id=3\ndirectory.id=imeMtvJjT-mRm2meW9xqpA\nversion=1\ncluster.id=cluster\n"
    )
    assert read_meta_properties(tmp_path) == PROPERTIES


@pytest.mark.parametrize("cluster_id", ["a:b", "a=b", "#a", "!a", "a\\b", "a\\:=#!", "ä"])
def test_characters_that_java_escapes(tmp_path: Path, cluster_id: str) -> None:
    properties = PROPERTIES._replace(cluster_id=cluster_id)
    write_meta_properties(tmp_path, properties)
    assert read_meta_properties(tmp_path) == properties


def test_no_file(tmp_path: Path) -> None:
    assert read_meta_properties(tmp_path) is None


def test_a_whole_file(tmp_path: Path) -> None:
    write(tmp_path)
    assert read_meta_properties(tmp_path) == PROPERTIES


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": None}, "version=0"),
        ({"version": "2"}, "version=2"),
        ({"cluster_id": None}, "cluster.id is missing"),
        ({"cluster_id": ""}, "cluster.id is missing"),
        ({"node_id": None}, "node.id is missing"),
        ({"node_id": "x"}, "'x'"),
        ({"directory_id": None}, "directory.id is missing"),
        ({"directory_id": "short"}, "not a Kafka uuid"),
        ({"directory_id": "AAAAAAAAAAAAAAAAAAAAAA"}, "is reserved"),
        ({"directory_id": "AAAAAAAAAAAAAAAAAAAAAQ"}, "is reserved"),
        ({"directory_id": "AAAAAAAAAAAAAAAAAAAAAg"}, "is reserved"),
    ],
)
def test_a_corrupt_file(tmp_path: Path, changes: dict[str, str | None], why: str) -> None:
    write(tmp_path, **changes)
    with pytest.raises(CorruptMetaProperties) as caught:
        read_meta_properties(tmp_path)
    assert why in str(caught.value) and "\n" not in str(caught.value)
    assert str(tmp_path / META_PROPERTIES) in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / META_PROPERTIES).write_bytes(b"\xff\xfe\0\x80")
    with pytest.raises(CorruptMetaProperties):
        read_meta_properties(tmp_path)


def test_a_kafka_with_zookeeper_is_not_corrupt(tmp_path: Path) -> None:
    (tmp_path / META_PROPERTIES).write_text("version=0\nbroker.id=1\ncluster.id=x\n")
    with pytest.raises(StartupError, match="with ZooKeeper") as caught:
        read_meta_properties(tmp_path)
    assert not isinstance(caught.value, CorruptMetaProperties)
