"""Where reads begin and end, how much a batch may have, and what was lost. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..checkpoint import Offsets
from ..cluster import TopicFacts, Topics
from ..errors import JobError
from ..topic_checks import counted
from .options import EARLIEST, LATEST


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of a partition: [start, end)."""

    topic: str
    partition: int
    start: int
    end: int


def resolved(wanted: int | Offsets, topics: Topics, name: str) -> Offsets:
    """Offsets of every partition. wanted: EARLIEST, LATEST, or offsets in which both may be. name:
    of the option. Raises JobError for partitions that are left out or do not exist, and offsets
    that the log does not have.
    """
    found: Offsets = {}
    for topic, facts in topics.items():
        for partition, latest in facts.latest.items():
            earliest = facts.earliest[partition]
            offset = wanted if isinstance(wanted, int) else _named(wanted, topic, partition, name)
            if offset in (EARLIEST, LATEST):
                offset = earliest if offset == EARLIEST else latest
            elif not earliest <= offset <= latest:
                raise JobError(
                    f"{name}: {topic}-{partition} has the offsets {earliest} to {latest}, not "
                    f"{offset}; failOnDataLoss=false takes the nearest"
                )
            found.setdefault(topic, {})[partition] = offset
    if not isinstance(wanted, int):
        for topic, offsets in wanted.items():
            for partition in offsets:
                if partition not in found.get(topic, {}):
                    raise JobError(f"{name} names {topic}-{partition}, which is not read")
    return found


def nearest(wanted: int | Offsets, topics: Topics, name: str) -> tuple[int | Offsets, list[str]]:
    """As wanted, but offsets that a log does not have are the nearest that it has; and a clause
    about each of them. name: of the option.
    """
    if isinstance(wanted, int):
        return wanted, []
    found: Offsets = {}
    notes = []
    for topic, offsets in wanted.items():
        facts = topics.get(topic)
        for partition, offset in offsets.items():
            inside = offset
            if facts is not None and partition in facts.latest and offset >= 0:
                earliest, latest = facts.earliest[partition], facts.latest[partition]
                inside = min(max(offset, earliest), latest)
            if inside != offset:
                notes.append(
                    f"{name}: {topic}-{partition} has the offsets {earliest} to {latest}: {inside} "
                    f"is taken instead of {offset}"
                )
            found.setdefault(topic, {})[partition] = inside
    return found, notes


def _named(wanted: Offsets, topic: str, partition: int, name: str) -> int:
    offset = wanted.get(topic, {}).get(partition)
    if offset is None:
        raise JobError(f"{name} does not name {topic}-{partition}: name every partition")
    return offset


def next_end(
    position: Offsets, topics: Topics, ids: Mapping[str, str], max_offsets: int
) -> Offsets:
    """The end of the batch that begins at `position`, of all partitions that exist. ids: of the
    topics when the query saw them last.

    Partitions that are new, belong to a topic that was created again, or end before the position
    are read from their first offset on: this batch ends there, without a record of them. So the
    checkpoint says where the next one begins, whatever happens to the log before that is read.
    """
    start: Offsets = {}
    anew = set()
    for topic, facts in topics.items():
        is_other = is_created_again(topic, topics, ids)
        for partition, latest in facts.latest.items():
            offset = position.get(topic, {}).get(partition)
            first = facts.earliest[partition]
            if offset is None or is_other or offset > latest:
                anew.add((topic, partition))
                offset = first
            start.setdefault(topic, {})[partition] = max(offset, first)
    end = limited(start, topics, max_offsets)
    for topic, partition in anew:
        end[topic][partition] = start[topic][partition]
    return end


def is_created_again(topic: str, topics: Topics, ids: Mapping[str, str]) -> bool:
    """Whether a topic that exists is not the one with the id in `ids`; not if one is not known."""
    known, now = ids.get(topic, ""), topics[topic].topic_id
    return bool(known and now and known != now)


def limited(start: Offsets, topics: Topics, max_offsets: int) -> Offsets:
    """The end of a batch that begins at `start` (of every partition): each partition gets a share
    of max_offsets by what is left of it, as in Spark's source.
    """
    left = {
        (topic, partition): max(0, latest - start[topic][partition])
        for topic, facts in topics.items()
        for partition, latest in facts.latest.items()
    }
    total = sum(left.values())
    end: Offsets = {}
    for (topic, partition), size in left.items():
        share = size
        if total > max_offsets:
            exact = max_offsets * size / total
            # Less than one record becomes one, so that no partition is left behind.
            share = min(size, math.ceil(exact) if exact < 1 else math.floor(exact))
        end.setdefault(topic, {})[partition] = start[topic][partition] + share
    return end


def losses(start: Offsets, end: Offsets, topics: Topics, ids: Mapping[str, str]) -> Iterator[str]:
    """What reading [start, end), of the same partitions, would lose, a clause for each topic or
    partition. ids: of the topics when the query saw them last, empty where they are not known.
    """
    for topic, ends in end.items():
        if topic not in topics:
            yield f"topic {topic} does not exist any more"
        elif is_created_again(topic, topics, ids):
            yield f"topic {topic} was deleted and created again"
        else:
            for partition, stop in ends.items():
                why = _loss(topic, partition, start[topic][partition], stop, topics[topic])
                if why is not None:
                    yield why


def _loss(topic: str, partition: int, begin: int, stop: int, facts: TopicFacts) -> str | None:
    if partition not in facts.latest:
        return f"topic {topic} has no partition {partition} any more"
    first, latest = facts.earliest[partition], facts.latest[partition]
    if stop > latest:
        return (
            f"{topic}-{partition} ends at offset {latest}, before {stop}: the topic was "
            "created again or lost its end"
        )
    if begin < first:
        count = first - begin
        return (
            f"{counted(count, 'offset')} of {topic}-{partition} from {begin} on "
            f"{'was' if count == 1 else 'were'} deleted unread: the log starts at {first}"
        )
    return None


def ranges(start: Offsets, end: Offsets, topics: Topics) -> list[Range]:
    """What is read of a batch, without what does not exist: `losses` is asked before."""
    found = []
    for topic, ends in sorted(end.items()):
        facts = topics.get(topic)
        for partition, stop in sorted(ends.items()):
            if facts is None or partition not in facts.latest:
                continue
            first = max(start[topic][partition], facts.earliest[partition])
            last = min(stop, facts.latest[partition])
            if first < last:
                found.append(Range(topic, partition, first, last))
    return found
