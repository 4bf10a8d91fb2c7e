"""`meta.properties`: the cluster, node and directory ids of a log directory (version 1)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, NamedTuple

from kbroker.log.storage.files import atomic_write, read_file
from kbroker.model import StartupError, Uuid, is_reserved_uuid, uuid_from_string, uuid_to_string
from kbroker.settings.properties import parse_properties

META_PROPERTIES: Final = "meta.properties"


class CorruptMetaProperties(StartupError):
    """A file with invalid content."""


class DirectoryProperties(NamedTuple):
    """The content of one file."""

    cluster_id: str
    node_id: int
    directory_id: Uuid


def read_meta_properties(directory: Path) -> DirectoryProperties | None:
    """The content of the directory's file, None without a file. Raises CorruptMetaProperties;
    StartupError for the file of a Kafka that is too old.
    """
    path = directory / META_PROPERTIES
    data = read_file(path)
    if data is None:
        return None
    try:
        values = parse_properties(data.decode("utf-8", errors="replace"), source=str(path))
    except StartupError as error:
        raise CorruptMetaProperties(str(error)) from error
    version = values.get("version", "0")
    if version == "0" and "broker.id" in values:
        raise StartupError(
            f"{path}: written by a Kafka with ZooKeeper (version=0); migrate it to KRaft with "
            "Kafka 3.9, "
            "or give kbroker an empty directory"
        )
    try:
        if version != "1":
            raise ValueError(f"version={version}, understood is 1")
        for key in ("cluster.id", "node.id", "directory.id"):
            if not values.get(key):
                raise ValueError(f"{key} is missing")
        directory_id = uuid_from_string(values["directory.id"])
        if is_reserved_uuid(directory_id):
            raise ValueError(f"directory.id={values['directory.id']} is reserved")
        return DirectoryProperties(values["cluster.id"], int(values["node.id"]), directory_id)
    except ValueError as error:
        raise CorruptMetaProperties(
            f"{path} is corrupt: {error}; restore it from a backup of this directory"
        ) from None


def write_meta_properties(
    directory: Path, properties: DirectoryProperties, *, now_s: float | None = None
) -> None:
    """Write the file, synced. now_s: the date in the file, seconds since the epoch; None for the
    current time.
    """
    date = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(now_s))
    lines = (
        "#",
        f"#{date}",
        f"node.id={properties.node_id}",
        f"directory.id={uuid_to_string(properties.directory_id)}",
        "version=1",
        f"cluster.id={_escaped(properties.cluster_id)}",
        "",
    )
    atomic_write(directory / META_PROPERTIES, "\n".join(lines).encode("utf-8"))


def _escaped(value: str) -> str:
    """A value as java.util.Properties writes it."""
    return "".join("\\" + character if character in "\\:=#!" else character for character in value)
