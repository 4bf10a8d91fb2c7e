"""The decision of a start of a streaming copy: whether the tokens in the target's cluster, the
checkpoint and the source tell one story. Pure; carrying it out is in `opening`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from ..checkpoint import Offsets, QueryLog
from ..cluster import Topics
from ..errors import StartRefused
from ..exactly_once.tokens import Token
from ..identity import Identity
from ..topic_checks import Finding, check_topics, counted
from .options import ResumeFrom

UNKNOWN_POSITION: Final = (
    "was copied before an earlier version left it out, and nothing says how far it was copied"
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a start finds. target, checkpoint: as messages name them. token: the newest of the
    query, None before its first batch. topics: of the source. targets: the topics that get records,
    by source topic; there: those of them that exist, where there is a token.
    """

    job: str
    query_name: str
    target: str
    checkpoint: str
    topics: Topics
    identity: Identity | None = None
    log: QueryLog = field(default_factory=lambda: QueryLog(-1, -1, {}))
    token: Token | None = None
    has_unknown_checkpoint: bool = False
    fail_on_data_loss: bool = True
    resume_from: ResumeFrom | None = None
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    there: Topics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a start does: begin, continue the checkpoint's query, or begin another query at
    `positions`. is_adopted: the newest token is another query's, after a resume. notes: lines for
    the user.
    """

    action: Literal["begin", "continue", "resume"]
    positions: Offsets = field(default_factory=dict)
    is_adopted: bool = False
    notes: tuple[str, ...] = ()


def query_id(identity: Identity) -> str:
    """What the tokens of a checkpoint's query say."""
    return f"{identity.checkpoint_id}-{identity.query}"


def decide(found: Situation) -> Plan:
    """The plan. Raises StartRefused."""
    is_adopted = refuse_others(found)
    if found.resume_from is not None:
        return _resume(found)
    identity = found.identity
    if identity is None:
        return Plan("begin")
    if not is_adopted:
        _refuse_other_times(found)
        _refuse_lost_targets(found, identity)
    notes = _refuse_topics(found, identity)
    _refuse_reading_again(found, identity, is_adopted=is_adopted)
    return Plan("continue", is_adopted=is_adopted, notes=notes)


def refuse_others(found: Situation) -> bool:
    """Raises StartRefused for a checkpoint of another job, and unless a resume is wanted for a
    token of another checkpoint, whose run may be alive. Returns whether the token is adopted.
    Topics and targets do not matter here.
    """
    _refuse_foreign(found)
    identity, token = found.identity, found.token
    if found.resume_from is not None or token is None:
        return False
    if identity is None:
        raise StartRefused(
            f"query {found.query_name} wrote up to batch {token.batch_id} of {found.target}, and "
            f"its checkpoint {found.checkpoint} is missing or another: beginning anew would repeat "
            "records. --resume-from output goes on behind that batch; or name another --queryName"
        )
    if token.query_id == query_id(identity):
        return False
    if identity.query > 1 and found.log.committed < 0:
        return True
    raise StartRefused(
        f"query {found.query_name} wrote up to batch {token.batch_id} of {found.target} with "
        f"another checkpoint than {found.checkpoint}: use that one, another --queryName, or "
        "--resume-from output to go on behind that batch"
    )


def _refuse_foreign(found: Situation) -> None:
    identity = found.identity
    if found.has_unknown_checkpoint:
        raise StartRefused(
            f"{found.checkpoint} is a checkpoint that {found.job} did not make (no identity.json): "
            "name another --checkpoint"
        )
    if identity is not None and identity.job != found.job:
        raise StartRefused(
            f"{found.checkpoint} is the checkpoint of the job {identity.job}: name another "
            "--checkpoint"
        )
    if identity is not None and identity.output != found.target:
        raise StartRefused(
            f"{found.checkpoint} belongs to {identity.output}, not to {found.target}: name the "
            "--checkpoint that belongs to it"
        )


def _refuse_other_times(found: Situation) -> None:
    """Token and checkpoint must be of the same moment."""
    token, log = found.token, found.log
    if token is None:
        if log.committed < 0:
            return
        raise StartRefused(
            f"{found.checkpoint} is at batch {log.committed}, but {found.target} has no batch of "
            f"query {found.query_name}: its cluster or its topic of tokens is another. "
            "--resume-from earliest copies from the first offset, --resume-from checkpoint goes on "
            "without what is missing"
        )
    if token.batch_id < log.committed:
        raise StartRefused(
            f"{found.checkpoint} is at batch {log.committed}, {found.target} at {token.batch_id}: "
            "going on would leave records out. --resume-from output goes on where the target is"
        )
    if token.batch_id > log.planned:
        raise StartRefused(
            f"{found.checkpoint} is older than {found.target} (batch {log.planned} and "
            f"{token.batch_id}): going on would repeat or lose records. --resume-from output goes "
            "on where the target is"
        )


def _refuse_lost_targets(found: Situation, identity: Identity) -> None:
    """What was written must still be there. Where no batch of the query is noted, the ids may be
    those of an earlier query; a topic that got a batch is not empty: each partition has a marker.
    """
    lost = _lost_targets(found, identity.targets if identity.batch_id >= 0 else {})
    for topic, target in lost.items():
        more = f" (and {len(lost) - 1} more topics)" if len(lost) > 1 else ""
        raise StartRefused(
            f"topic {target}{more} was deleted or created again, and does not have what was "
            f"written of {topic}: going on would leave that out. --resume-from output copies "
            f"{topic} from its first offset, --resume-from checkpoint goes on without what is "
            "missing"
        )


def _lost_targets(found: Situation, ids: Mapping[str, str]) -> dict[str, str]:
    """By source topic, a target that no longer has what was written. ids: of the targets then."""
    lost: dict[str, str] = {}
    for topic, offsets in sorted(_reached(found.token).items()):
        if topic not in found.topics or not any(offsets.values()):
            continue
        for target in found.targets.get(topic, ()):
            facts = found.there.get(target)
            known = ids.get(target)
            is_empty = facts is None or not any(facts.latest.values())
            if is_empty or (facts is not None and known and facts.topic_id not in ("", known)):
                lost[topic] = target
    return lost


def _refuse_topics(found: Situation, identity: Identity) -> tuple[str, ...]:
    """Raises for topics that are no longer what they were; gives notes on what is ignored."""
    position = found.log.position or identity.starting
    findings = check_topics(identity.topics, position, found.topics)
    refused = [
        finding
        for finding in findings
        if found.fail_on_data_loss or finding.kind in ("recreated", "shrunk")
    ]
    if refused:
        raise StartRefused(_refusal(found, refused[0], len(refused)))
    return tuple(finding.text for finding in findings)


def _refuse_reading_again(found: Situation, identity: Identity, *, is_adopted: bool) -> None:
    """No batch may read what is copied: Spark forgets a topic that a batch has no offsets of, as
    with one that is left out under --failOnDataLoss false, and takes it for a new one later.
    """
    log, known = found.log, _reached(found.token)
    written = -1 if found.token is None or is_adopted else found.token.batch_id
    steps = [log.ends.get(log.planned, identity.starting)]
    if log.planned > written:
        steps.insert(0, log.ends.get(log.planned - 1, identity.starting))
    steps.append({topic: facts.latest for topic, facts in found.topics.items()})
    for before, after in pairwise(steps):
        # Of a query that has begun nowhere yet nothing is copied.
        for topic in sorted(after.keys() - before.keys()) if before else ():
            copied = sum(known.get(topic, {}).values())
            if copied:
                raise StartRefused(
                    f"topic {topic} was not read for a while and Spark has forgotten where it "
                    f"was: going on would repeat up to {counted(copied, 'record')}. --resume-from "
                    "output goes on where the target is"
                )
            if topic in identity.topics and topic not in known:
                raise StartRefused(
                    f"topic {topic} {UNKNOWN_POSITION}: going on would copy it again from its "
                    "first offset, as --resume-from output does; or leave it out"
                )


def _refusal(found: Situation, finding: Finding, count: int) -> str:
    ways = {
        "recreated": "--resume-from earliest copies the new topic behind the old records",
        "shrunk": "--resume-from earliest copies the new topic behind the old records",
        "truncated": "--failOnDataLoss false goes on behind the gap",
        "not read": f"add {finding.topic} to --subscribe, or pass --failOnDataLoss false",
    }
    more = f" (and {count - 1} more topics)" if count > 1 else ""
    return f"{finding.text}{more}. {ways[finding.kind]}"


def _resume(found: Situation) -> Plan:
    """Another query from where the user wants; partitions that are not named begin at the first
    offset.
    """
    sources: dict[str, Offsets] = {
        "output": _reached(found.token),
        "checkpoint": found.log.position,
        "earliest": {},
    }
    wanted = sources[found.resume_from or "earliest"]
    if found.resume_from != "earliest" and not wanted:
        place = found.target if found.resume_from == "output" else found.checkpoint
        raise StartRefused(f"--resume-from {found.resume_from}: {place} has no offsets to go on at")
    if found.resume_from == "checkpoint":
        wanted = {**_reached(found.token), **wanted}
    known = found.identity.topics if found.identity is not None else {}
    findings = check_topics(known, wanted, found.topics)
    again = {finding.topic for finding in findings if finding.kind in ("recreated", "shrunk")}
    lost = _lost_targets(found, found.identity.targets if found.identity is not None else {})
    if found.resume_from == "output":
        again |= lost.keys()
    positions = {
        topic: {
            partition: first
            if topic in again
            else min(
                max(wanted.get(topic, {}).get(partition, first), first), facts.latest[partition]
            )
            for partition, first in facts.earliest.items()
        }
        for topic, facts in found.topics.items()
    }
    notes = tuple(f"resuming although {finding.text}" for finding in findings) + tuple(
        f"resuming although topic {target} no longer has what was written of {topic}"
        for topic, target in lost.items()
    )
    return Plan("resume", positions, is_adopted=found.token is not None, notes=notes)


def _reached(token: Token | None) -> Offsets:
    if token is None:
        return {}
    return {topic: dict(offsets) for topic, offsets in token.reached.items()}
