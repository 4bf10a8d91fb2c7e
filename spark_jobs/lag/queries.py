"""Where queries are: what their checkpoints or their groups say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..checkpoint import Offsets, read_query_id, read_query_log
from ..cluster import Topics
from ..errors import JobError
from ..identity import FILE_NAME, read_identity
from ..storage import Folder, absolute


@dataclass(frozen=True, slots=True)
class Position:
    """The next offsets that a query reads. name: its checkpoint's folder, or its group. query_id:
    Spark's, empty for a group. batch_id: the newest committed one, -1 before the first, None for a
    group. known: the topics as they were at that batch, where the job keeps them. planned: the end
    offsets of the batch behind it, None if the checkpoint has not planned one.
    """

    kind: Literal["checkpoint", "group"]
    name: str
    offsets: Offsets
    query_id: str = ""
    batch_id: int | None = None
    known: Topics = field(default_factory=dict)
    planned: Offsets | None = None


def checkpoint_positions(location: str) -> list[Position]:
    """The query of a checkpoint folder, or the queries of all checkpoints in a folder of them.

    Raises JobError if there are none, or one cannot be read.
    """
    folder = Folder(absolute(location))
    try:
        own = _position(folder)
        if own is not None:
            return [own]
        found = [_position(folder.child(name)) for name in folder.names()]
    except OSError as error:
        raise JobError(f"{folder} cannot be read: {error.strerror or error}") from error
    positions = [position for position in found if position is not None]
    if not positions:
        raise JobError(
            f"{folder} is no checkpoint and has none in it: name what a query has as "
            "checkpointLocation"
        )
    return positions


def _position(folder: Folder) -> Position | None:
    """Of a folder that is a checkpoint; None for another folder, or a file."""
    is_of_job = folder.exists(FILE_NAME)
    identity = read_identity(folder) if is_of_job else None
    query = folder if identity is None else folder.child(identity.query_folder)
    if identity is None and not (query.exists("offsets") and query.exists("metadata")):
        return None
    log = read_query_log(query)
    offsets = log.position
    if identity is not None and not offsets:
        offsets = identity.starting
    return Position(
        "checkpoint",
        str(folder),
        offsets,
        query_id=read_query_id(query),
        batch_id=log.committed,
        known={} if identity is None else identity.topics,
        planned=log.ends.get(log.committed + 1),
    )
