"""The decision of a start: whether output, checkpoint and cluster tell one story.

Pure: `Situation` is what was found, `decide` gives a `Plan` or raises StartRefused with one line
that says what a restart would lose or repeat. Carrying the plan out is in `opening`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from ..checkpoint import Offsets, QueryLog
from ..cluster import Topics
from ..errors import StartRefused
from ..identity import Identity
from ..topic_checks import Finding, check_topics, counted
from .commits import Commit
from .layout import LEVELS

JOB: Final = "archive"
ResumeFrom = Literal["output", "checkpoint", "group", "earliest"]


@dataclass(frozen=True, slots=True)
class Situation:
    """What a start finds. output, checkpoint: as messages name them. job: `archive`, or another
    that keeps such an output. commit: the output's newest. records: in the output. foreign: why
    the output is not an archive's, empty if it is one or is empty. topics: None if the cluster
    could not be asked. has_lost_identity: whether the checkpoint has queries and does not say whose
    they are. begun: where the checkpoint's query begins its first batch. group: offsets of the
    group of --resume-from group.
    """

    output: str
    checkpoint: str
    layout: tuple[str, ...]
    topics: Topics | None
    job: str = JOB
    identity: Identity | None = None
    log: QueryLog = field(default_factory=lambda: QueryLog(-1, -1, {}))
    begun: Offsets = field(default_factory=dict)
    commit: Commit | None = None
    records: int = 0
    foreign: str = ""
    has_unknown_checkpoint: bool = False
    has_lost_identity: bool = False
    fail_on_data_loss: bool = True
    resume_from: ResumeFrom | None = None
    group: Offsets = field(default_factory=dict)

    @property
    def reached(self) -> Offsets:
        """Next offsets up to which the checkpoint says that records are archived; empty for none. A
        query that resumed and has no batch yet has reached where it begins.
        """
        starting = self.identity.starting if self.identity is not None else {}
        return self.log.position or starting


@dataclass(frozen=True, slots=True)
class Plan:
    """What a start does: begin, continue the checkpoint's query, or begin another query at
    `positions` (resume). is_rewound: files from those positions on are removed first, their
    records archived again. recreated: topics whose records are a new generation. notes: lines for
    the user.
    """

    action: Literal["begin", "continue", "resume", "finish resume"]
    positions: Offsets = field(default_factory=dict)
    recreated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def decide(found: Situation) -> Plan:
    """The plan. Raises StartRefused."""
    _refuse_foreign(found)
    _refuse_other_layout(found)
    if found.resume_from is not None:
        return _resume(found)
    identity, commit = found.identity, found.commit
    if commit is None or commit.is_empty:
        _refuse_lost_output(found)
        if commit is None or identity is None or identity.checkpoint_id != commit.checkpoint_id:
            return Plan("begin")
        return _begin_or_continue(found, commit)
    if identity is None:
        raise StartRefused(
            f"{found.output} holds {counted(found.records, 'record')} and its checkpoint "
            f"{found.checkpoint} is missing or another: beginning anew would repeat them or lose "
            "what came behind them. --resume-from output goes on where the output ends; or name "
            "its own --checkpoint, or another --output"
        )
    if commit.query > identity.query:
        return Plan("finish resume", commit.positions)
    _refuse_other_times(found, identity, commit)
    notes = _refuse_topics(found, identity, commit)
    _refuse_reading_again(found, commit)
    return Plan("continue", notes=notes)


def _begin_or_continue(found: Situation, commit: Commit) -> Plan:
    """Of an output that has begun and holds nothing: the topics it began with may be others now."""
    recreated = [
        (name, facts.earliest)
        for name, facts in sorted((found.topics or {}).items())
        if commit.topic_ids.get(name) and facts.topic_id not in ("", commit.topic_ids[name])
    ]
    for name, earliest in recreated:
        is_behind = any(
            offset > earliest.get(partition, -1)
            for partition, offset in found.begun.get(name, {}).items()
        )
        if found.log.planned >= 0 or is_behind:  # Spark goes on with offsets of the old topic
            raise StartRefused(
                f"topic {name} was deleted and created again before a record of it was in "
                f"{found.output}: going on would lose records of the new topic. --resume-from "
                "earliest archives the new topic; or name another --output and --checkpoint"
            )
    return Plan("begin" if recreated else "continue")


def _refuse_foreign(found: Situation) -> None:
    if found.foreign:
        raise StartRefused(f"{found.foreign}; name another --output")
    if found.has_unknown_checkpoint:
        raise StartRefused(
            f"{found.checkpoint} is a checkpoint that {found.job} did not make (no identity.json): "
            "name another --checkpoint"
        )
    identity, commit = found.identity, found.commit
    if identity is not None and identity.job != found.job:
        raise StartRefused(
            f"{found.checkpoint} is the checkpoint of the job {identity.job}: name another "
            "--checkpoint"
        )
    if identity is None or commit is None or identity.checkpoint_id == commit.checkpoint_id:
        return
    if commit.is_empty and found.log.committed < 0:
        return
    raise StartRefused(
        f"{found.output} was written with another checkpoint than {found.checkpoint}, which "
        f"belongs to {identity.output}: going on would repeat or lose records. Name the "
        "--checkpoint that belongs to this output, or another --output"
    )


def _refuse_other_layout(found: Situation) -> None:
    commit = found.commit
    if commit is not None and commit.records and commit.layout != found.layout:
        there = ",".join(commit.layout) or "none"
        wanted = ",".join(level for level in LEVELS if level in found.layout) or "none"
        raise StartRefused(
            f"{found.output} has the layout {there}: with {wanted} beside it readers would miss "
            f"its {counted(found.records, 'record')}. Give --layout {there}, or another --output "
            "and --checkpoint"
        )


def _refuse_lost_output(found: Situation) -> None:
    if found.has_lost_identity:
        raise StartRefused(
            f"{found.checkpoint} has lost its identity.json, and {found.output} has none of the "
            "records that its queries have read: going on would leave them out. Bring the file "
            "back; or --resume-from earliest archives what Kafka still has, or name another "
            "--checkpoint"
        )
    position = sum(sum(offsets.values()) for offsets in found.reached.values())
    if found.log.committed < 0 and not position:
        return
    raise StartRefused(
        f"{found.checkpoint} says that offsets up to {_shown(found.reached)} are archived, "
        f"but {found.output} has none of them: going on would leave out up to "
        f"{counted(position, 'record')}. Bring the output back; or --resume-from earliest archives "
        "what Kafka still has, --resume-from checkpoint goes on without them"
    )


def _refuse_other_times(found: Situation, identity: Identity, commit: Commit) -> None:
    """The output and the checkpoint must be of the same moment: neither an older copy."""
    log, batch_id = found.log, commit.batch_id
    if identity.query > commit.query or batch_id < log.committed:
        lost = _distance(commit.positions, log.position)
        raise StartRefused(
            f"{found.output} is older than {found.checkpoint} (batch {batch_id} and "
            f"{log.committed}): going on would leave out {counted(lost, 'record')}. "
            "--resume-from output archives them if Kafka still has them, --resume-from checkpoint "
            "goes on without them"
        )
    ends = log.ends.get(batch_id)
    is_other = ends is not None and any(
        commit.positions.get(topic) != offsets for topic, offsets in ends.items()
    )
    if batch_id > log.planned or is_other:
        repeated = _distance(log.position, commit.positions)
        raise StartRefused(
            f"{found.checkpoint} is older than {found.output} (batch {log.planned} and "
            f"{batch_id}): going on would repeat or lose {counted(repeated, 'record')}. "
            "--resume-from output goes on where the output ends"
        )


def _refuse_topics(found: Situation, identity: Identity, commit: Commit) -> tuple[str, ...]:
    """Raises for topics that are no longer what they were; gives notes on what is ignored."""
    if found.topics is None:
        return ()
    findings = check_topics(identity.topics, commit.positions, found.topics)
    refused = [
        finding
        for finding in findings
        if found.fail_on_data_loss or finding.kind in ("recreated", "shrunk")
    ]
    if refused:
        raise StartRefused(_refusal(found, refused[0], len(refused)))
    return tuple(finding.text for finding in findings)


def _refuse_reading_again(found: Situation, commit: Commit) -> None:
    """The next batches must not read what is archived, see `read_again`."""
    log = found.log
    steps = [log.ends.get(log.planned, found.begun)]
    if log.planned > commit.batch_id:
        steps.insert(0, log.ends.get(log.planned - 1, found.begun))
    if found.topics is not None:
        steps.append({topic: facts.latest for topic, facts in found.topics.items()})
    for before, after in pairwise(steps):
        again = read_again(before, after, commit.positions)
        if again:
            raise StartRefused(f"{found.checkpoint}: {again}")


def read_again(before: Offsets, after: Offsets, archived: Offsets) -> str:
    """Why a batch would archive records a second time, and the way out; empty if it would not.
    before, after: offsets of the batch's beginning and end. archived: next offsets of the output.

    Spark forgets a partition of which a batch has no offset, as with a topic that is left out under
    --failOnDataLoss false. When it comes back, Spark takes it for a new one and reads it from its
    first offset.
    """
    counts = {
        topic: sum(
            archived.get(topic, {}).get(partition, 0)
            for partition in partitions
            if partition not in before.get(topic, {})
        )
        for topic, partitions in after.items()
    }
    topics = sorted(topic for topic, count in counts.items() if count)
    if not topics:
        return ""
    more = f" (and {len(topics) - 1} more topics)" if len(topics) > 1 else ""
    return (
        f"topic {topics[0]}{more} was not read for a while and Spark has forgotten where it was: "
        f"going on would repeat up to {counted(counts[topics[0]], 'record')}. --resume-from output "
        "goes on where the output ends"
    )


def _refusal(found: Situation, finding: Finding, count: int) -> str:
    ways = {
        "recreated": "--resume-from earliest archives the new topic beside the old records",
        "shrunk": "--resume-from earliest archives the new topic beside the old records",
        "truncated": "--resume-from output goes on behind the gap, as does --failOnDataLoss false",
        "not read": f"add {finding.topic} to --subscribe, or pass --failOnDataLoss false",
    }
    more = f" (and {count - 1} more topics)" if count > 1 else ""
    place = f"{found.checkpoint}: " if finding.kind == "not read" else ""
    return f"{place}{finding.text}{more}. {ways[finding.kind]}; or name another --output"


def _resume(found: Situation) -> Plan:
    """Another query from where the user wants; partitions that are not named begin at the first
    offset. A topic that no longer has what is archived begins a generation there, since of its old
    records the archive may have the only copy.
    """
    sources: dict[str, Offsets] = {
        "output": found.commit.positions if found.commit is not None else {},
        "checkpoint": found.reached,
        "group": found.group,
        "earliest": {},
    }
    wanted = sources[found.resume_from or "earliest"]
    if found.resume_from in ("output", "checkpoint") and not wanted:
        place = found.output if found.resume_from == "output" else found.checkpoint
        raise StartRefused(f"--resume-from {found.resume_from}: {place} has no offsets to go on at")
    if found.topics is None:
        if not wanted:
            raise StartRefused(
                f"--resume-from {found.resume_from} needs the topics' offsets, which can't be "
                "asked for over TLS or SASL: give --resume-from output"
            )
        return Plan("resume", wanted)
    known = found.identity.topics if found.identity is not None else {}
    findings = check_topics(known, wanted, found.topics)
    recreated = {finding.topic for finding in findings if finding.kind in ("recreated", "shrunk")}
    if found.commit is not None:
        lost = [
            finding
            for finding in check_topics({}, found.commit.positions, found.topics)
            if finding.kind in ("recreated", "shrunk") and finding.topic not in recreated
        ]
        findings += lost
        recreated |= {finding.topic for finding in lost}
        recreated |= {
            topic
            for topic, topic_id in found.commit.topic_ids.items()
            if topic_id and topic in found.topics and found.topics[topic].topic_id != topic_id
        }
    positions = {
        topic: {
            partition: first
            if topic in recreated
            else min(
                max(wanted.get(topic, {}).get(partition, first), first), facts.latest[partition]
            )
            for partition, first in facts.earliest.items()
        }
        for topic, facts in found.topics.items()
    }
    notes = tuple(f"resuming although {finding.text}" for finding in findings)
    return Plan("resume", positions, tuple(sorted(recreated)), notes)


def _distance(start: Offsets, end: Offsets) -> int:
    return sum(
        max(0, offset - start.get(topic, {}).get(partition, 0))
        for topic, offsets in end.items()
        for partition, offset in offsets.items()
    )


def _shown(offsets: Offsets) -> str:
    places = [
        f"{topic}-{partition}:{offset}"
        for topic, partitions in sorted(offsets.items())
        for partition, offset in sorted(partitions.items())
    ]
    return ", ".join(places[:3]) + (" and more" if len(places) > 3 else "")
