"""Formatting: what makes empty directories those of a node, and the check that they still are this
node's.

`meta.properties` in every log directory names cluster, node and directory. A new cluster also gets
`bootstrap.checkpoint` (the features it begins with) and, with a dynamic quorum, a first snapshot
that names its voter. `kbroker format` does it by hand (like Kafka's StorageTool); a start on empty
directories does it by itself. meta.properties is written last, the metadata directory's last of
all: a crash on the way leaves a directory that is formatted again from the start.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from kbroker.log.storage.files import (
    LogDirectoryError,
    exists,
    list_directory,
    make_directory,
    sync_directory,
    unlink,
)
from kbroker.model import StartupError, Uuid, random_uuid, uuid_to_string
from kbroker.quorum.bootstrap import METADATA_VERSION_NAME, default_bootstrap_records
from kbroker.quorum.meta_properties import (
    META_PROPERTIES,
    CorruptMetaProperties,
    DirectoryProperties,
    read_meta_properties,
    write_meta_properties,
)
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID
from kbroker.quorum.raft.voter_set import Voter, VoterEndpoint
from kbroker.quorum.snapshots import (
    BOOTSTRAP,
    build_snapshot,
    read_snapshot,
    write_snapshot,
)
from kbroker.settings.broker import BrokerConfig

METADATA_FOLDER: Final = "__cluster_metadata-0"
DEFAULT_CONTROLLER_ENDPOINT: Final = VoterEndpoint("CONTROLLER", "localhost", 9093)

_VOTER: Final = re.compile(r"(\d+)@\[?([^\[\]]+)\]?:(\d+)")
_DO_NOT_COUNT: Final = frozenset(
    {".lock", "lost+found", f"{META_PROPERTIES}.tmp", f"{BOOTSTRAP}.part"}
)
"""What may lie in a directory that counts as empty."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Who this node is. directory_ids: by log directory, as configured, the metadata directory
    included.
    """

    cluster_id: str
    node_id: int
    directory_ids: dict[str, Uuid]
    log_directory_ids: tuple[Uuid, ...]
    """Those of log.dirs, in order: what the broker registers with."""


def format_directories(
    config: BrokerConfig,
    *,
    cluster_id: str,
    random: Random,
    ignore_formatted: bool = False,
    standalone: bool | None = None,
) -> list[str]:
    """Format every directory of the configuration for that cluster. Returns lines that say what was
    done.

    ignore_formatted: leave directories that are already this cluster's and node's as they are,
    instead of refusing. standalone: a dynamic quorum whose only voter is this node; None: unless
    controller.quorum.voters is set. Raises StartupError.
    """
    if not cluster_id or cluster_id != cluster_id.strip() or len(cluster_id) > 255:
        raise StartupError(
            f"cluster id {cluster_id!r}: give a name of 1 to 255 characters without blanks around "
            "it"
        )
    found = _read_all(config)
    formatted = {path: properties for path, properties in found.items() if properties is not None}
    if formatted and not ignore_formatted:
        raise StartupError(
            f"Log directory {next(iter(formatted))} is already formatted. Use --ignore-formatted "
            "to ignore this "
            "directory and format the others."
        )
    _check_consistent(config, formatted, cluster_id=cluster_id)
    if standalone is None:
        standalone = not config.is_explicit("controller.quorum.voters")
    if standalone and config.is_explicit("controller.quorum.voters"):
        raise StartupError(
            "controller.quorum.voters is set: a static quorum cannot be formatted as standalone"
        )
    missing = [path for path in found if found[path] is None]
    if not missing:
        return ["All of the log directories are already formatted."]
    return [
        _format_one(config, path, cluster_id=cluster_id, standalone=standalone, random=random)
        for path in sorted(missing, key=lambda path: path == config.metadata_log_dir)
    ]


def ensure_formatted(
    config: BrokerConfig,
    random: Random,
    *,
    offline: Collection[str] = (),
    on_failed: Callable[[LogDirectoryError], object] | None = None,
) -> MetaProperties:
    """Check the directories of this node before it starts, formatting the empty ones. Raises
    StartupError.

    offline: directories of log.dirs to pass over, since their disk failed. on_failed: told of one
    that cannot be read, which is passed over then; the metadata directory never is.
    """
    found = _read_all(config, offline, on_failed)
    formatted = {path: properties for path, properties in found.items() if properties is not None}
    _check_consistent(config, formatted)
    missing = [path for path in found if path not in formatted]
    for path in missing:
        entries = _entries(Path(path))
        if entries:
            raise StartupError(
                f"{path} has no {META_PROPERTIES} but is not empty ({_listed(entries)}): if it is "
                "this node's, restore "
                "that file from a backup; if not, point log.dirs to an empty directory"
            )
    if formatted and config.metadata_log_dir in missing:
        raise StartupError(
            f"the metadata log directory {config.metadata_log_dir} is empty, but "
            f"{next(iter(formatted))} belongs to the "
            f"cluster {next(iter(formatted.values())).cluster_id}: is a disk not mounted?"
        )
    if missing:
        known = next(iter(formatted.values()), None)
        cluster_id = uuid_to_string(random_uuid(random)) if known is None else known.cluster_id
        for path in sorted(missing, key=lambda path: path == config.metadata_log_dir):
            standalone = not config.is_explicit("controller.quorum.voters")
            _format_one(config, path, cluster_id=cluster_id, standalone=standalone, random=random)
        again = _read_all(config, [path for path in offline if path not in found], on_failed)
        formatted = {path: p for path, p in again.items() if p is not None}
    return MetaProperties(
        cluster_id=formatted[config.metadata_log_dir].cluster_id,
        node_id=config.node_id,
        directory_ids={path: properties.directory_id for path, properties in formatted.items()},
        log_directory_ids=tuple(
            formatted[path].directory_id for path in config.log_dirs if path in formatted
        ),
    )


def load_bootstrap_records(config: BrokerConfig) -> list[bytes]:
    """The framed records of bootstrap.checkpoint; those of a new cluster if the file is missing."""
    path = Path(config.metadata_log_dir) / BOOTSTRAP
    return read_snapshot(path).records if exists(path) else default_bootstrap_records()


def static_voters(config: BrokerConfig) -> tuple[Voter, ...]:
    """controller.quorum.voters: `id@host:port`, ... Raises StartupError."""
    voters = []
    for text in config.get_list("controller.quorum.voters"):
        match = _VOTER.fullmatch(text)
        if match is None:
            raise StartupError(
                f"controller.quorum.voters: {text!r} is not of the form id@host:port"
            )
        endpoint = VoterEndpoint(_controller_name(config), match[2], int(match[3]))
        voters.append(Voter(int(match[1]), bytes(16), (endpoint,)))
    return tuple(voters)


def _controller_name(config: BrokerConfig) -> str:
    return next(
        (each.name for each in config.controller_listeners), DEFAULT_CONTROLLER_ENDPOINT.name
    )


def own_endpoints(config: BrokerConfig) -> tuple[VoterEndpoint, ...]:
    """Where this node's controller is to be reached, for the voters record."""
    endpoints = tuple(
        VoterEndpoint(each.name, each.host or "localhost", each.port)
        for each in config.controller_listeners
    )
    return endpoints or (DEFAULT_CONTROLLER_ENDPOINT,)


def _directories(config: BrokerConfig) -> list[str]:
    return list(dict.fromkeys((*config.log_dirs, config.metadata_log_dir)))


def _read_all(
    config: BrokerConfig,
    offline: Collection[str] = (),
    on_failed: Callable[[LogDirectoryError], object] | None = None,
) -> dict[str, DirectoryProperties | None]:
    found = {}
    for path in _directories(config):
        if path in offline and path != config.metadata_log_dir:
            continue
        try:
            found[path] = read_meta_properties(Path(path))
        except LogDirectoryError as error:
            if on_failed is None or path == config.metadata_log_dir:
                raise StartupError(f"log directory {path}: {error}") from error
            on_failed(error)
        except CorruptMetaProperties as error:
            if on_failed is None or path == config.metadata_log_dir:
                raise
            fault = OSError(errno.EINVAL, str(error))
            on_failed(LogDirectoryError(Path(path) / META_PROPERTIES, "use", fault))
    return found


def _check_consistent(
    config: BrokerConfig,
    formatted: dict[str, DirectoryProperties],
    *,
    cluster_id: str | None = None,
) -> None:
    expected, source = cluster_id, "asked for"
    owners: dict[Uuid, str] = {}
    for path, properties in formatted.items():
        if expected is None:
            expected, source = properties.cluster_id, f"in {path}"
        if properties.cluster_id != expected:
            raise StartupError(
                f"{path}/{META_PROPERTIES}: cluster.id={properties.cluster_id}, but {expected} is "
                f"{source}: this "
                "directory belongs to another cluster"
            )
        if properties.node_id != config.node_id:
            raise StartupError(
                f"{path}/{META_PROPERTIES}: node.id={properties.node_id}, but this node is "
                f"{config.node_id}: set node.id, "
                "or point log.dirs to this node's directories"
            )
        other = owners.setdefault(properties.directory_id, path)
        if other != path:
            raise StartupError(
                f"{path} and {other} have the same directory.id "
                f"{uuid_to_string(properties.directory_id)}: one is a copy of "
                "the other; remove it"
            )


def _entries(path: Path) -> list[str]:
    """What makes a directory count as not empty."""
    if not exists(path):
        return []
    entries = []
    for name, _, is_directory in list_directory(path):
        if name in _DO_NOT_COUNT or (name == METADATA_FOLDER and _is_unborn(path / name)):
            continue
        if name == BOOTSTRAP and not is_directory:
            continue
        entries.append(name)
    return entries


def _is_unborn(folder: Path) -> bool:
    """A metadata folder that a broken-off format left: nothing but the first snapshot, or a part of
    it.
    """
    names = [name for name, _, _ in list_directory(folder)]
    return all(
        name == BOOTSTRAP_ID.file_name or name.endswith(".checkpoint.part") for name in names
    )


def _listed(entries: Sequence[str]) -> str:
    return ", ".join(entries[:3]) + (", ..." if len(entries) > 3 else "")


def _format_one(
    config: BrokerConfig, path: str, *, cluster_id: str, standalone: bool, random: Random
) -> str:
    directory = Path(path)
    directory_id = random_uuid(random)
    try:
        make_directory(directory)
        if path == config.metadata_log_dir:
            _format_metadata(config, directory, directory_id, standalone=standalone)
        write_meta_properties(
            directory, DirectoryProperties(cluster_id, config.node_id, directory_id)
        )
        sync_directory(directory.parent)  # else a power loss could take the new directory away
    except LogDirectoryError as error:
        raise StartupError(f"log directory {path} cannot be formatted: {error}") from error
    if path != config.metadata_log_dir:
        return f"Formatting data directory {path} with metadata.version {METADATA_VERSION_NAME}."
    kind = "dynamic metadata voter" if standalone else "metadata"
    return f"Formatting {kind} directory {path} with metadata.version {METADATA_VERSION_NAME}."


def _format_metadata(
    config: BrokerConfig, directory: Path, directory_id: Uuid, *, standalone: bool
) -> None:
    now_ms = int(time.time() * 1000)
    folder = directory / METADATA_FOLDER
    first = folder / BOOTSTRAP_ID.file_name
    unlink(first)
    if standalone:
        make_directory(folder)
        voter = Voter(config.node_id, directory_id, own_endpoints(config))
        content = build_snapshot(
            QuorumConfiguration(1, (voter,)),
            (),
            epoch=0,
            last_contained_timestamp_ms=now_ms,
            now_ms=now_ms,
        )
        write_snapshot(first, folder / f"{first.stem}-1.checkpoint.part", content)
    content = build_snapshot(
        QuorumConfiguration(),
        [default_bootstrap_records()],
        epoch=0,
        last_contained_timestamp_ms=0,
        now_ms=now_ms,
    )
    write_snapshot(directory / BOOTSTRAP, directory / f"{BOOTSTRAP}.part", content)
