"""Whether topics are still those that a job stopped at: same id, no fewer partitions, and the next
offsets within what the log has. Pure; each finding says how many records are concerned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .checkpoint import Offsets
from .cluster import TopicFacts, Topics

Kind = Literal["recreated", "truncated", "shrunk", "not read"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a topic. text: a clause without a full stop. records: how many would be
    lost by going on.
    """

    kind: Kind
    topic: str
    text: str
    records: int = 0


def check_topics(known: Topics, position: Offsets, now: Topics) -> list[Finding]:
    """The findings of a restart at `position`, by topic. known: the topics at the last batch; now:
    the topics that will be read.
    """
    findings = []
    for topic in sorted(position.keys() | known.keys()):
        offsets = position.get(topic, {})
        facts = now.get(topic)
        if facts is None:
            if offsets:
                findings.append(
                    Finding("not read", topic, f"topic {topic} is part of it and not read any more")
                )
            continue
        finding = _check(topic, known.get(topic), offsets, facts)
        if finding is not None:
            findings.append(finding)
    return findings


def _check(
    topic: str, known: TopicFacts | None, offsets: dict[int, int], now: TopicFacts
) -> Finding | None:
    if known is not None and known.topic_id and now.topic_id and known.topic_id != now.topic_id:
        lost = sum(
            max(0, min(offsets.get(partition, 0), end) - now.earliest[partition])
            for partition, end in now.latest.items()
        )
        return Finding(
            "recreated",
            topic,
            f"topic {topic} was deleted and created again: going on at the old offsets would lose "
            f"{counted(lost, 'record')} of the new topic",
            lost,
        )
    missing = sorted(partition for partition in offsets if partition not in now.latest)
    if missing:
        return Finding(
            "shrunk",
            topic,
            f"topic {topic} has {counted(len(now.latest), 'partition')} and had "
            f"{max(offsets) + 1}: it was created again",
        )
    beyond = [partition for partition, next_ in offsets.items() if next_ > now.latest[partition]]
    if beyond:
        first = min(beyond)
        return Finding(
            "recreated",
            topic,
            f"partition {first} of topic {topic} ends at offset {now.latest[first]}, before "
            f"{offsets[first]}, the next offset to read: the topic was created again or lost its "
            "end",
            sum(now.latest[partition] - now.earliest[partition] for partition in beyond),
        )
    lost = sum(max(0, now.earliest[partition] - next_) for partition, next_ in offsets.items())
    if lost:
        return Finding(
            "truncated",
            topic,
            f"topic {topic} was truncated: {counted(lost, 'offset')} "
            f"{'was' if lost == 1 else 'were'} deleted unread",
            lost,
        )
    return None


def counted(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`, `2 batches`."""
    plural = f"{noun}es" if noun.endswith("h") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
