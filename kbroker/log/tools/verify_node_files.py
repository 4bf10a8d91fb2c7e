"""Checks the files of a node beside its partitions: meta.properties, quorum-state, metadata
snapshots. Part of `verify`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kbroker.log.storage import names
from kbroker.log.storage.files import LogDirectoryError, read_file
from kbroker.log.tools.dump import DumpError, batches_of
from kbroker.log.tools.findings import Finding, Problem, Progress
from kbroker.model import StartupError, uuid_from_string
from kbroker.protocol.batches.batch_header import check_crc
from kbroker.protocol.batches.control_records import ControlType, control_type
from kbroker.protocol.batches.records import iter_records
from kbroker.protocol.errors import KafkaError
from kbroker.settings.properties import parse_properties

META_PROPERTIES: Final = "meta.properties"
QUORUM_STATE: Final = "quorum-state"
CHECKPOINT: Final = ".checkpoint"
IS_A_FOLDER: Final = "it is a folder, not a file"


def without_path(error: Exception, path: Path) -> str:
    return str(error).removeprefix(f"{path}: ")


def verify_node_files(folder: Path, files: list[str]) -> Iterator[Finding]:
    for name, check in (
        (META_PROPERTIES, _check_meta_properties),
        (names.CLEAN_SHUTDOWN, _check_json),
        (QUORUM_STATE, check_quorum_state),
    ):
        if name in files:
            yield from check_text(folder / name, check)
    for name in files:
        if name.endswith(CHECKPOINT):
            yield from verify_metadata_snapshot(folder / name)


def check_text(path: Path, check: Callable[[str], object]) -> Iterator[Problem]:
    try:
        check((read_file(path) or b"").decode("utf-8"))
    except LogDirectoryError as error:
        yield Problem(path, str(error))
    except (ValueError, KeyError, TypeError, AttributeError, StartupError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        yield Problem(path, what)


def _check_meta_properties(text: str) -> None:
    values = parse_properties(text, source=META_PROPERTIES)
    if values["version"] != "1":
        raise ValueError(f"version {values['version']!r}, expected 1")
    int(values["node.id"])
    uuid_from_string(values["directory.id"])
    if not values["cluster.id"]:
        raise ValueError("cluster.id is empty")


def _check_json(text: str) -> None:
    if text.strip():
        json.loads(text).get("brokerEpoch")


def check_quorum_state(text: str) -> None:
    values = json.loads(text)
    for key in ("leaderId", "leaderEpoch", "votedId", "data_version"):
        int(values[key])
    if values["data_version"] == 1:
        uuid_from_string(values["votedDirectoryId"])


def verify_metadata_snapshot(path: Path) -> Iterator[Finding]:
    """A snapshot of the metadata: valid batches from a header record to a footer record."""
    kinds: list[ControlType] = []
    size = 0
    try:
        for position, header, batch in batches_of(path):
            size = position + header.size_bytes
            if not check_crc(batch, 0, header):
                yield Problem(path, f"position {position}: wrong CRC")
                return
            if header.is_control:
                kinds += [control_type(record) for record in iter_records(batch, header)]
    except (DumpError, LogDirectoryError, KafkaError) as error:
        yield Problem(path, without_path(error, path))
        return
    is_snapshot = path.name != "bootstrap.checkpoint" or bool(kinds)
    if is_snapshot and (not kinds or kinds[0] is not ControlType.SNAPSHOT_HEADER):
        yield Problem(path, "it does not begin with a snapshot header")
    if is_snapshot and (not kinds or kinds[-1] is not ControlType.SNAPSHOT_FOOTER):
        yield Problem(path, "it does not end with a snapshot footer: its writer did not finish")
    yield Progress(path, size)
