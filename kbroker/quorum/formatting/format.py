"""Formats the empty directories of a node, and checks that formatted ones belong to this node.

`meta.properties` in every log directory has the cluster, node and directory ids;
`bootstrap.checkpoint` has the features of a new cluster. In a dynamic quorum whose first voters are
known, the metadata directory also gets a first snapshot with these voters. `kbroker format` is the
manual way (Kafka's StorageTool). A node formats its directories itself at start only if it is the
only voter: among several, a voter that lost its disk could vote twice, and a new cluster would be
created beside the old one (KAFKA-14205). meta.properties is written last, and that of the metadata
directory last of all: after a crash during formatting the directory is formatted again from the
start.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from kbroker.log.storage.files import (
    LogDirectoryError,
    atomic_write,
    exists,
    list_directory,
    make_directory,
    sync_directory,
    unlink,
)
from kbroker.model import ZERO_UUID, StartupError, Uuid, random_uuid, uuid_to_string
from kbroker.quorum.disk.meta_properties import (
    META_PROPERTIES,
    CorruptMetaProperties,
    DirectoryProperties,
    read_meta_properties,
    write_meta_properties,
)
from kbroker.quorum.disk.snapshots import (
    BOOTSTRAP,
    build_snapshot,
    read_snapshot,
    write_snapshot,
)
from kbroker.quorum.formatting.bootstrap import (
    KRAFT_VERSION,
    METADATA_VERSION,
    bootstrap_records,
    default_bootstrap_records,
    initial_levels,
    metadata_version_name,
    parse_features,
)
from kbroker.quorum.formatting.initial_voters import parse_initial_voters
from kbroker.quorum.raft.control import QuorumConfiguration
from kbroker.quorum.raft.offsets import BOOTSTRAP_ID
from kbroker.quorum.raft.voters.voter_set import Voter, VoterEndpoint
from kbroker.settings.broker import BrokerConfig

METADATA_FOLDER: Final = "__cluster_metadata-0"
DEFAULT_CONTROLLER_ENDPOINT: Final = VoterEndpoint("CONTROLLER", "localhost", 9093)

_DO_NOT_COUNT: Final = frozenset(
    {".lock", "lost+found", f"{META_PROPERTIES}.tmp", f"{BOOTSTRAP}.tmp"}
)
"""Names of files that an empty directory may contain."""


class MetaProperties(msgspec.Struct, frozen=True):
    """The identity of this node. directory_ids: by log directory, as configured, including the
    metadata directory.
    """

    cluster_id: str
    node_id: int
    directory_ids: dict[str, Uuid]


class FormatOptions(msgspec.Struct, frozen=True):
    """The options of `kbroker format`. cluster_id: None for that of the formatted directories, or a
    new one if this node is the only voter. standalone, initial_controllers
    (`id@host:port:directory-id`, ...), no_initial_controllers: the voters of a dynamic quorum, at
    most one of the three. release_version: sets the features that are not in features
    (`name=level`); None for the newest.
    """

    cluster_id: str | None = None
    ignore_formatted: bool = False
    standalone: bool = False
    initial_controllers: str | None = None
    no_initial_controllers: bool = False
    release_version: str | None = None
    features: tuple[str, ...] = ()


class _Plan(msgspec.Struct, frozen=True):
    """What the directories of a node are formatted with. voters: the first voters of a dynamic
    quorum, if known to this node.
    """

    cluster_id: str
    levels: Mapping[str, int]
    voters: tuple[Voter, ...] = ()

    def own_voter(self, node_id: int) -> Voter | None:
        return next((voter for voter in self.voters if voter.id == node_id), None)


def format_directories(
    config: BrokerConfig, options: FormatOptions, *, random: Random
) -> list[str]:
    """Format every directory of the configuration. Returns lines that describe the result. Raises
    StartupError.
    """
    found = _read_all(config)
    formatted = {path: properties for path, properties in found.items() if properties is not None}
    known = next(iter(formatted.values()), None)
    plan = _plan_by_hand(config, options, random, None if known is None else known.cluster_id)
    _check_consistent(config, formatted, cluster_id=plan.cluster_id)
    if formatted and not options.ignore_formatted:
        raise StartupError(
            f"Log directory {next(iter(formatted))} is already formatted. Use --ignore-formatted "
            "to ignore this directory and format the others."
        )
    missing = [path for path in found if found[path] is None]
    if not missing:
        return ["All of the log directories are already formatted."]
    return _format_all(config, missing, plan, random)


def _plan_by_hand(
    config: BrokerConfig, options: FormatOptions, random: Random, known_id: str | None
) -> _Plan:
    """known_id: the cluster id of already formatted directories."""
    cluster_id = known_id if options.cluster_id is None else options.cluster_id
    if cluster_id is None:
        if not (options.standalone or config.forms_quorum_alone):
            raise StartupError("give the --cluster-id of the cluster, the same on all of its nodes")
        cluster_id = uuid_to_string(random_uuid(random))
    if not cluster_id or cluster_id != cluster_id.strip() or len(cluster_id) > 255:
        raise StartupError(
            f"cluster id {cluster_id!r}: give a name of 1 to 255 characters without blanks around "
            "it"
        )
    is_static = bool(config.voters)
    if is_static and (options.standalone or options.initial_controllers is not None):
        raise StartupError(
            "You cannot specify controller.quorum.voters and format the node with "
            "--initial-controllers or --standalone. If you want to use dynamic quorum, please "
            "remove controller.quorum.voters and specify controller.quorum.bootstrap.servers "
            "instead."
        )
    voters: tuple[Voter, ...] = ()
    if options.initial_controllers is not None:
        voters = parse_initial_voters(options.initial_controllers, _controller_name(config))
    elif options.standalone and not config.is_controller:
        raise StartupError("You can only use --standalone on a controller.")
    elif options.standalone or (
        config.forms_quorum_alone and not is_static and not options.no_initial_controllers
    ):
        voters = _standalone_voters(config, random)
    elif config.is_controller and not is_static and not options.no_initial_controllers:
        raise StartupError(
            "Because controller.quorum.voters is not set on this controller, you must specify one "
            "of the following: --standalone, --initial-controllers, or --no-initial-controllers."
        )
    levels = initial_levels(
        options.release_version, parse_features(options.features), is_dynamic=not is_static
    )
    return _Plan(cluster_id, levels, voters)


def _standalone_voters(config: BrokerConfig, random: Random) -> tuple[Voter, ...]:
    return (Voter(config.node_id, random_uuid(random), own_endpoints(config)[:1]),)


def ensure_formatted(
    config: BrokerConfig,
    random: Random,
    *,
    offline: Collection[str] = (),
    on_failed: Callable[[LogDirectoryError], object] | None = None,
) -> MetaProperties:
    """Check the directories of this node before it starts, formatting the empty ones. Raises
    StartupError.

    offline: directories of log.dirs to skip, since their disk failed. on_failed: called with a
    directory that cannot be read, which is then skipped; the metadata directory is never skipped.
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
                "this node's, restore that file from a backup; if not, point log.dirs to an empty "
                "directory"
            )
    if formatted and config.metadata_log_dir in missing:
        raise StartupError(
            f"the metadata log directory {config.metadata_log_dir} is empty, but "
            f"{next(iter(formatted))} belongs to the "
            f"cluster {next(iter(formatted.values())).cluster_id}: is a disk not mounted?"
        )
    if missing:
        if not config.forms_quorum_alone:
            raise _not_formatted(config, missing[0], formatted)
        known = next(iter(formatted.values()), None)
        cluster_id = uuid_to_string(random_uuid(random)) if known is None else known.cluster_id
        voters = () if config.voters else _standalone_voters(config, random)
        levels = initial_levels(is_dynamic=not config.voters)
        _format_all(config, missing, _Plan(cluster_id, levels, voters), random)
        again = _read_all(config, [path for path in offline if path not in found], on_failed)
        formatted = {path: p for path, p in again.items() if p is not None}
    return MetaProperties(
        cluster_id=formatted[config.metadata_log_dir].cluster_id,
        node_id=config.node_id,
        directory_ids={path: properties.directory_id for path, properties in formatted.items()},
    )


def _not_formatted(
    config: BrokerConfig, path: str, formatted: Mapping[str, DirectoryProperties]
) -> StartupError:
    known = next(iter(formatted.values()), None)
    file = config.source if exists(Path(config.source)) else "CONFIGURATION"
    command = f"kbroker format {file} --cluster-id "
    command += "ID" if known is None else f"{known.cluster_id} --ignore-formatted"
    voters = ""
    if config.is_controller and not config.voters:
        if known is None:
            voters = " (in a new cluster --standalone or --initial-controllers)"
        command += " --no-initial-controllers"
    if config.is_controller and config.voters and known is None:
        return StartupError(
            f"log directory {path} has no {META_PROPERTIES}, and this node is not the only voter "
            f"there is: in a new cluster run `{command}` first; a voter that has lost its disk "
            "could vote twice in an epoch, so mount the disk that has its data; if there is none, "
            "run that command only after `kbroker cluster quorum` shows a leader elected since the "
            "loss, and all other voters caught up with it"
        )
    return StartupError(
        f"log directory {path} has no {META_PROPERTIES}, and this node is not the only voter there "
        f"is: run `{command}`{voters} first, or mount the disk that has its data"
    )


def load_bootstrap_records(config: BrokerConfig) -> list[bytes]:
    """The framed records of bootstrap.checkpoint; those of a new cluster if the file is missing."""
    path = Path(config.metadata_log_dir) / BOOTSTRAP
    return read_snapshot(path).records if exists(path) else default_bootstrap_records()


def static_voters(config: BrokerConfig) -> tuple[Voter, ...]:
    """The voters of controller.quorum.voters, with their first controller listener."""
    name = _controller_name(config)
    return tuple(
        Voter(voter.id, ZERO_UUID, (VoterEndpoint(name, voter.host, voter.port),))
        for voter in config.voters
    )


def _controller_name(config: BrokerConfig) -> str:
    names = config.controller_listener_names
    return names[0] if names else DEFAULT_CONTROLLER_ENDPOINT.name


def own_endpoints(config: BrokerConfig) -> tuple[VoterEndpoint, ...]:
    """The endpoints of this node's controller, for the voters record."""
    endpoints = tuple(
        VoterEndpoint(each.name, each.host or "localhost", each.port)
        for each in config.advertised_controller_listeners
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
    """Files because of which a directory is not considered empty."""
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
    """Whether the folder is a metadata folder left by an interrupted format: it has only the first
    snapshot, or a part of it.
    """
    names = [name for name, _, _ in list_directory(folder)]
    return all(
        name == BOOTSTRAP_ID.file_name or name.endswith(".checkpoint.part") for name in names
    )


def _listed(entries: Sequence[str]) -> str:
    return ", ".join(entries[:3]) + (", ..." if len(entries) > 3 else "")


def _format_all(
    config: BrokerConfig, paths: Sequence[str], plan: _Plan, random: Random
) -> list[str]:
    return [
        _format_one(config, path, plan, random)
        for path in sorted(paths, key=lambda path: path == config.metadata_log_dir)
    ]


def _format_one(config: BrokerConfig, path: str, plan: _Plan, random: Random) -> str:
    directory = Path(path)
    directory_id = random_uuid(random)
    kind = "data"
    if path == config.metadata_log_dir:
        kind, own_voter = "metadata", plan.own_voter(config.node_id)
        if own_voter is not None:
            kind, directory_id = "dynamic metadata voter", own_voter.directory_id
        elif plan.voters:
            kind = "dynamic metadata"
    try:
        make_directory(directory)
        if path == config.metadata_log_dir:
            _write_first_snapshot(directory, plan)
        _write_bootstrap(directory, plan)
        write_meta_properties(
            directory, DirectoryProperties(plan.cluster_id, config.node_id, directory_id)
        )
        sync_directory(directory.parent)  # else a power loss could lose the new directory
    except LogDirectoryError as error:
        raise StartupError(f"log directory {path} cannot be formatted: {error}") from error
    release = metadata_version_name(plan.levels[METADATA_VERSION])
    return f"Formatting {kind} directory {path} with metadata.version {release}."


def _write_first_snapshot(directory: Path, plan: _Plan) -> None:
    folder = directory / METADATA_FOLDER
    first = folder / BOOTSTRAP_ID.file_name
    unlink(first)
    if not plan.voters:
        return
    now_ms = int(time.time() * 1000)
    make_directory(folder)
    content = build_snapshot(
        QuorumConfiguration(plan.levels[KRAFT_VERSION], plan.voters),
        (),
        epoch=0,
        last_contained_timestamp_ms=now_ms,
        now_ms=now_ms,
    )
    write_snapshot(first, folder / f"{first.stem}-1.checkpoint.part", content)


def _write_bootstrap(directory: Path, plan: _Plan) -> None:
    content = build_snapshot(
        QuorumConfiguration(),
        [bootstrap_records(plan.levels)],
        epoch=0,
        last_contained_timestamp_ms=0,
        now_ms=int(time.time() * 1000),
    )
    atomic_write(directory / BOOTSTRAP, b"".join(content))
