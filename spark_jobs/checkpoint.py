"""What Spark's checkpoint of a query says: which batches are planned, which are done, and their
offsets.

`offsets/N` fixes the end offsets of batch N before the batch runs, `commits/N` follows it. The
files' form is that of Spark 2.1 and later: `v1`, a line of batch metadata, a line per source, `-`
for one that has no offset yet. Before the first batch Kafka's source notes in `sources/0/0` where
it begins: a zero byte, `v1`, a line of offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import JobError
from .storage import Folder

Offsets = dict[str, dict[int, int]]
"""Next offset by topic and partition."""


@dataclass(frozen=True, slots=True)
class QueryLog:
    """The newest planned and the newest committed batch, -1 for none. ends: by batch id, of those
    two and the one before.
    """

    planned: int
    committed: int
    ends: dict[int, Offsets]

    @property
    def position(self) -> Offsets:
        """Next offsets behind the newest committed batch; empty before the first."""
        return self.ends.get(self.committed, {})


def read_query_log(query: Folder) -> QueryLog:
    """What the checkpoint folder of one query says. Raises JobError if it cannot be read."""
    committed = _newest(query, "commits")  # first: a running query may plan and commit meanwhile
    planned = _newest(query, "offsets")
    if committed > planned:
        raise JobError(
            f"{query} is incomplete: batch {committed} is committed and has no offsets; bring the "
            "folder back whole, or remove it"
        )
    ends = {
        batch_id: offsets
        for batch_id in {planned - 1, planned, committed}
        if batch_id >= 0 and (offsets := batch_ends(query, batch_id)) is not None
    }
    return QueryLog(planned, committed, ends)


def read_query_id(query: Folder) -> str:
    """Spark's id of a query, which stays from run to run; empty before its first. Raises JobError
    if the checkpoint cannot be understood.
    """
    content = query.read("metadata")
    if content is None:
        return ""
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"{query}/metadata is damaged: bring it back from a copy") from error


def batch_ends(query: Folder, batch_id: int) -> Offsets | None:
    """The end offsets (exclusive) of a planned batch, of all its Kafka sources; None if Spark has
    not planned it, or has purged it. Raises JobError if the file cannot be understood.
    """
    content = query.read(f"offsets/{batch_id}")
    if content is None:
        return None
    lines = content.decode(errors="replace").splitlines()
    try:
        if lines[0] != "v1":
            raise ValueError(f"version {lines[0]}")
        if len(lines) < 3:
            raise ValueError("it has no sources")
        return merged(_source_offsets(line) for line in lines[2:])
    except (ValueError, TypeError, IndexError) as error:
        raise JobError(
            f"{query}/offsets/{batch_id} is damaged ({error}): bring it back from a copy, or "
            "choose --resume-from output"
        ) from error


def initial_offsets(query: Folder) -> Offsets | None:
    """Where the first batch of a query with one Kafka source begins; None before Spark has noted
    that. Raises JobError if the file cannot be understood.
    """
    content = query.read("sources/0/0")
    if content is None:
        return None
    version, _, line = content.decode(errors="replace").lstrip("\0").partition("\n")
    try:
        if version != "v1":
            raise ValueError(f"version {version}")
        return parse_offsets(line)
    except (ValueError, TypeError, AttributeError) as error:
        raise JobError(
            f"{query}/sources/0/0 is damaged ({error}): bring it back from a copy, or choose "
            "--resume-from output"
        ) from error


def _source_offsets(line: str) -> Offsets:
    """Of one source; empty for one that is not Kafka's, or has no offset yet. Raises ValueError."""
    value = None if line == "-" else json.loads(line)
    if value is not None and not isinstance(value, dict | int):
        raise ValueError(f"{line[:40]!r} is no offset")
    return kafka_offsets(value)


def kafka_offsets(value: object) -> Offsets:
    """Offsets out of the JSON value that a source gives; empty unless it is one of Kafka's source:
    others give numbers, or objects such as `{"logOffset": 3}`. Raises TypeError for an offset that
    is no number.
    """
    if not isinstance(value, dict) or not all(
        isinstance(each, dict) and all(map(str.isdecimal, each)) for each in value.values()
    ):
        return {}
    return parse_offsets(json.dumps(value))


def merged(sources: Iterable[Offsets]) -> Offsets:
    """The offsets of several sources. Of a partition that two of them read, the lower one: up to
    there both have read.
    """
    found: Offsets = {}
    for offsets in sources:
        for topic, partitions in offsets.items():
            known = found.setdefault(topic, {})
            for partition, offset in partitions.items():
                known[partition] = min(offset, known.get(partition, offset))
    return found


def parse_offsets(text: str) -> Offsets:
    """Spark's JSON of offsets: `{"orders":{"0":12}}`. Raises ValueError."""
    topics: dict[str, dict[str, int]] = json.loads(text)
    return {
        topic: {int(partition): int(offset) for partition, offset in offsets.items()}
        for topic, offsets in topics.items()
    }


def format_offsets(offsets: Offsets) -> str:
    """Offsets as Spark's options take them."""
    return json.dumps(
        {
            topic: {str(partition): offset for partition, offset in sorted(partitions.items())}
            for topic, partitions in sorted(offsets.items())
        }
    )


def _newest(query: Folder, log: str) -> int:
    return max((int(name) for name in query.names(log) if name.isdecimal()), default=-1)
