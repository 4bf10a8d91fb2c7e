"""`translate`: commits a consumer group's offsets in a copy of its topics.

It needs neither Spark nor Java; the copy may run meanwhile. The group must have no live members on
either side: stop its consumers, translate, start them at the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kbroker.client.cluster import EARLIEST_TIMESTAMP, READ_COMMITTED, TopicPartition
from kbroker.client.consumer import decode_fetched
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..checkpoint import Offsets
from ..cluster import Topics
from ..copying.origins import registrations
from ..errors import JobError, StartRefused
from ..exactly_once.check import newest_token
from ..exactly_once.driver import QuerySettings
from ..exactly_once.errors import sink_error
from ..exactly_once.map_log import OffsetMap, read_offset_map
from ..exactly_once.token_log import tokens_partition
from ..exactly_once.tokens import EndOffsets, Token
from ..exactly_once.topics import MAP_TOPIC
from ..lag.committer import refusal
from ..topic_checks import counted
from ..wire.client import BlockingClient, ClusterAddress
from ..wire.fetch import fetch
from ..wire.groups import commit_offsets, committed_offsets, describe_group
from ..wire.offsets import is_missing, list_offset, topic_facts
from .moves import Copied, Move, moved, needs_first
from .options import TranslateOptions

LOOK_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class TranslateReport:
    """What was found. is_committed: whether the copy's group has the offsets now. left_out: topics
    of the group that the copy does not have.
    """

    options: TranslateOptions
    moves: tuple[Move, ...]
    left_out: tuple[str, ...]
    is_committed: bool

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "moves": [
                {
                    "topic": move.source.topic,
                    "partition": move.source.partition,
                    "offset": move.offset,
                    "to_topic": move.target.topic,
                    "to_offset": move.target_offset,
                }
                for move in self.moves
            ],
            "left_out": self.left_out,
            "is_committed": self.is_committed,
        }

    def to_text(self) -> str:
        """A line for each partition, one for each topic that is left out, and a summary."""
        lines = [
            f"{move.source} offset {move.offset} -> {move.target} offset {move.target_offset}"
            for move in self.moves
        ]
        lines += [f"note: topic {topic} is not copied" for topic in self.left_out]
        offsets = counted(len(self.moves), "offset")
        if self.is_committed:
            lines.append(f"{offsets} committed for group {self.options.to_group}")
        else:
            lines.append(f"{offsets} found; nothing was committed: add --execute")
        return "\n".join(lines)


def translate(options: TranslateOptions, *, execute: bool) -> TranslateReport:
    """Look the offsets up, and commit them if `execute`. Raises StartRefused if the copy does not
    have what the group has read or will read, or a group has live members; JobError.
    """
    source, target = (
        BlockingClient(ClusterAddress(servers, retry_timeout_s=LOOK_S))
        for servers in (options.bootstrap_servers, options.to_servers)
    )
    try:
        return _translate(options, source, target, execute=execute)
    except KafkaError as error:
        raise sink_error(error, f"translating group {options.group}") from error
    finally:
        source.close()
        target.close()


def _translate(
    options: TranslateOptions, source: BlockingClient, target: BlockingClient, *, execute: bool
) -> TranslateReport:
    _refuse_members(source, options.group)
    if (options.group, options.bootstrap_servers) != (options.to_group, options.to_servers):
        _refuse_members(target, options.to_group)
    committed = committed_offsets(source, options.group)
    if not committed:
        raise JobError(f"group {options.group} has committed no offsets")
    token = _token(options, target)  # before the map, which then has at least its batch
    copied, is_cut = _offset_map(options, target)
    after = _token(options, target)  # behind the map, which has no batch of a later one
    if after.query_id != token.query_id:
        raise JobError(
            f"query {options.query_name} was begun anew while its offset map was read: translate "
            "again"
        )
    names = _names(options, target, token, copied)
    wanted = {topic: offsets for topic, offsets in committed.items() if topic in names}
    left_out = tuple(sorted(committed.keys() - wanted.keys()))
    if not wanted:
        raise JobError(
            f"query {options.query_name} copies none of the topics of group {options.group} "
            f"({', '.join(left_out)})"
        )
    positions = token.reached, after.reached
    moves = tuple(_moves(source, wanted, names, positions, copied, is_cut=is_cut))
    _refuse_beyond(moves, topic_facts(target, sorted({move.target.topic for move in moves})))
    if execute:
        ends: Offsets = {}
        for move in moves:
            ends.setdefault(move.target.topic, {})[move.target.partition] = move.target_offset
        commit_offsets(target, options.to_group, ends)
    return TranslateReport(options, moves, left_out, execute)


def _refuse_members(client: BlockingClient, group: str) -> None:
    why = refusal(group, describe_group(client, group))
    if why is not None:
        raise StartRefused(why)


def _names(
    options: TranslateOptions, target: BlockingClient, token: Token, copied: OffsetMap
) -> dict[str, str]:
    """Target topic by source topic: as the mirror registered them. A restore or a replay registers
    nothing, and has one of each.
    """
    found = {
        one.source.topic: one.target
        for one in registrations(target)
        if one.query_name == options.query_name
    }
    targets = {place.topic for place in copied}
    if not found and len(token.end_offsets) == len(targets) == 1:
        return dict(zip(token.end_offsets, targets, strict=True))
    return found


def _moves(
    source: BlockingClient,
    committed: Offsets,
    names: Mapping[str, str],
    positions: tuple[EndOffsets, EndOffsets],
    runs: OffsetMap,
    *,
    is_cut: bool,
) -> Iterator[Move]:
    """positions: of the copy, before and after its offset map was read."""
    for topic, offsets in sorted(committed.items()):
        for partition, offset in sorted(offsets.items()):
            place = TopicPartition(topic, partition)
            copy = TopicPartition(names[topic], partition)
            position, reached = (ends.get(topic, {}).get(partition, 0) for ends in positions)
            copied = Copied(position, runs.get(copy, ()), is_cut, reached)
            first = None
            if offset <= position and needs_first(offset, copied):
                first = first_record(source, place, offset, position)
            yield moved(place, offset, copy, copied, first)


def _refuse_beyond(moves: Sequence[Move], copies: Topics) -> None:
    """Raises StartRefused unless the copies still have what the offset map says."""
    for move in moves:
        facts = copies.get(move.target.topic)
        end = None if facts is None else facts.latest.get(move.target.partition)
        if end is None or move.target_offset > end:
            has = "does not exist" if end is None else f"ends at offset {end}"
            raise StartRefused(
                f"{move.source} offset {move.offset} is offset {move.target_offset} of "
                f"{move.target}, which {has}: the copy was deleted or created again, and the "
                "offset map is of the one before. Copy the topic again first"
            )


def _token(options: TranslateOptions, target: BlockingClient) -> Token:
    """The newest token, waiting for a batch that is being written."""
    token = target.retry(lambda: newest_token(target, options.query_name))
    if token is None:
        raise JobError(f"query {options.query_name} has written no batch yet")
    if token.keeper_id is not None:
        raise JobError(
            f"query {options.query_name} keeps offsets: those of group {options.group} hold as "
            "they are (kbroker groups export and reset-offsets --from-file)"
        )
    return token


def _offset_map(options: TranslateOptions, target: BlockingClient) -> tuple[OffsetMap, bool]:
    """The map, and whether its oldest part was deleted."""
    transactional_id = QuerySettings(options.query_name, ()).transactional_id
    try:
        count = target.retry(lambda: target.partition_count(MAP_TOPIC), is_final=is_missing)
    except KafkaError as error:
        if not is_missing(error):
            raise
        raise JobError(f"query {options.query_name} has no offset map") from None
    place = TopicPartition(MAP_TOPIC, tokens_partition(transactional_id, count))
    first = target.retry(partial(list_offset, target, place, EARLIEST_TIMESTAMP))
    return read_offset_map(target, place, transactional_id), first > 0


def first_record(
    client: BlockingClient, place: TopicPartition, offset: int, end: int
) -> int | None:
    """The offset of the first committed record in [offset, end); None if there is none. Records
    that were deleted do not count. Raises KafkaError.
    """
    start = client.retry(partial(list_offset, client, place, EARLIEST_TIMESTAMP))
    position = max(offset, start)
    while position < end:
        data = client.retry(partial(fetch, client, place, position, READ_COMMITTED))
        records, following = decode_fetched(place, data, position, READ_COMMITTED)
        if records:
            return records[0].offset if records[0].offset < end else None
        if following == position:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"{place} returns nothing at {position}"
            )
        position = following
    return None
