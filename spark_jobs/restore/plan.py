"""The decision of a start of `restore` or `replay`: where it begins, and whether offsets are kept.
Pure. It keeps no checkpoint: the token in the target's cluster says how far an earlier run came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import StartRefused
from ..exactly_once.tokens import Token
from ..topic_checks import counted
from .options import OffsetsWanted


@dataclass(frozen=True, slots=True)
class Found:
    """What a start finds.

    source: as messages name it; source_id: tells it from another of the same name. starts, ends: of
    what is to be written, by partition; firsts: the first offset that the source has. target_ends:
    of the target's partitions, empty if it does not exist. token: the newest of the query, None
    before the first. foreign: target partitions whose last record is another producer's, where the
    token keeps offsets.
    """

    query_name: str
    source: str
    source_topic: str
    source_id: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    firsts: Mapping[int, int]
    target_topic: str
    target_ends: Mapping[int, int]
    token: Token | None
    foreign: frozenset[int] = frozenset()
    wanted: OffsetsWanted = "auto"
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the run begins. batch_id: of its first batch. keeper_id: the producer id of an earlier
    run that kept offsets. may_keep: a first run that keeps offsets if the source has no gaps; why
    not is in `obstacle`. notes: lines for the user.
    """

    positions: dict[int, int]
    batch_id: int = 0
    keeper_id: int | None = None
    may_keep: bool = False
    obstacle: str = ""
    notes: tuple[str, ...] = ()


def decide(found: Found) -> Plan:
    """The plan. Raises StartRefused."""
    if found.token is None:
        return _first(found)
    if found.token.query_id != found.source_id:
        raise StartRefused(
            f"query {found.query_name} wrote to {found.target_topic} from another source than "
            f"{found.source}, or from a topic that was created again since: name another "
            "--queryName to write from the beginning"
        )
    if found.token.keeper_id is not None:
        return _kept(found, found.token.keeper_id)
    if found.wanted == "keep":
        raise StartRefused(
            f"query {found.query_name} has written {found.target_topic} without keeping offsets: "
            "leave --offsets keep out, or name another --queryName and an empty topic"
        )
    return _continued(found, found.token)


def _first(found: Found) -> Plan:
    obstacle = ""
    used = sorted(partition for partition, end in found.target_ends.items() if end)
    late = sorted(partition for partition, start in found.starts.items() if start)
    if used:
        obstacle = f"partition {used[0]} of {found.target_topic} is not empty"
    elif late:
        obstacle = (
            f"partition {late[0]} of {found.source_topic} begins at offset {found.starts[late[0]]}"
        )
    if found.wanted == "keep" and obstacle:
        raise StartRefused(
            f"offsets cannot be kept: {obstacle}. --offsets map writes an offset map"
        )
    if found.wanted == "map":
        obstacle = "--offsets map"
    return Plan(dict(found.starts), may_keep=not obstacle, obstacle=obstacle)


def _kept(found: Found, keeper_id: int) -> Plan:
    positions = {partition: found.target_ends.get(partition, 0) for partition in found.ends}
    for partition, position in sorted(positions.items()):
        if position > found.ends[partition]:
            raise StartRefused(
                f"partition {partition} of {found.target_topic} ends at offset {position}, behind "
                f"the end of {found.source} ({found.ends[partition]}): another producer wrote to "
                "it, so offsets cannot be kept any more; restore to an empty topic"
            )
        if partition in found.foreign:
            raise StartRefused(
                f"the last record of partition {partition} of {found.target_topic} (before offset "
                f"{position}) is not of query {found.query_name}: another producer wrote to it, so "
                "offsets cannot be kept any more; restore to an empty topic"
            )
    lost = _lost(found, positions)
    if lost:
        raise StartRefused(
            f"{lost}, and offsets cannot be kept behind a gap: restore to another topic with "
            "--offsets map"
        )
    return Plan(positions, keeper_id=keeper_id)


def _continued(found: Found, token: Token) -> Plan:
    known = token.end_offsets.get(found.source_topic, {})
    positions = {
        partition: max(known.get(partition, start), 0) for partition, start in found.starts.items()
    }
    beyond = sorted(p for p, position in positions.items() if position > found.ends[p])
    if beyond:
        first = beyond[0]
        raise StartRefused(
            f"partition {first} of {found.source} ends at offset {found.ends[first]}, before "
            f"{positions[first]}, the next offset to write: the source lost its end"
        )
    written = any(position > found.starts[p] for p, position in positions.items())
    if written and not any(found.target_ends.values()):
        raise StartRefused(
            f"query {found.query_name} wrote up to batch {token.batch_id}, but "
            f"{found.target_topic} has none of it: the topic was deleted or created again. Name "
            "another --queryName to write it from the beginning"
        )
    lost = _lost(found, positions)
    if lost and found.fail_on_data_loss:
        raise StartRefused(f"{lost}. --failOnDataLoss false goes on behind them")
    firsts = {p: max(position, found.firsts.get(p, 0)) for p, position in positions.items()}
    return Plan(firsts, token.batch_id + 1, notes=(lost,) if lost else ())


def _lost(found: Found, positions: Mapping[int, int]) -> str:
    """What the source has lost since, in words; empty for nothing."""
    lost = sum(
        max(found.firsts.get(partition, 0) - position, 0)
        for partition, position in positions.items()
        if position < found.ends[partition]
    )
    if not lost:
        return ""
    return f"{counted(lost, 'offset')} of {found.source} were deleted before they were written"
