"""Records of topics, topics that match a pattern, or single partitions, from one bound to another:
what `consume`, `search` and `resend` read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from kbroker.cli.console.output import note
from kbroker.cli.console.partitions import ChosenPartitions, chosen_partitions
from kbroker.cli.records.offset_ranges import (
    BEGINNING,
    END,
    OffsetRange,
    parse_range,
    partition_limits,
    resolve,
)
from kbroker.cli.session import not_empty, properties
from kbroker.model import StartupError, TopicPartition

if TYPE_CHECKING:
    from kbroker.client.cluster import Client
    from kbroker.client.consumer import ConsumedRecord, ConsumerConfig, Reset

Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC[:P,P]...", help="Topics or partitions of them.", callback=not_empty
    ),
]
Regex = Annotated[
    bool,
    typer.Option("--regex", "-r", help="Topics are regular expressions that match whole names."),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", help="This partition alone; repeatable."),
]
OffsetText = Annotated[
    str | None,
    typer.Option("--offset", "-o", metavar="OFFSET", help="Where to begin, or n..m; see below."),
]
ReadCommitted = Annotated[
    bool, typer.Option("--read-committed", help="Leave out aborted transactions.")
]
MaxMessages = Annotated[
    int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after so many.")
]

FROM_THE_BEGINNING: Final = OffsetRange(BEGINNING)
FROM_THE_END: Final = OffsetRange(END)

WATCH_INTERVAL_S: Final = 5.0
"""How often a pattern is matched against the cluster's topics again."""


class Wanted(NamedTuple):
    """What is to be read. names: topics, or patterns if is_regex; the partitions that are named
    with each, none for all.
    """

    names: Sequence[ChosenPartitions]
    is_regex: bool

    @classmethod
    def of(cls, names: Sequence[str], partitions: Sequence[int] | None, *, regex: bool) -> Wanted:
        """Of a command's arguments. Raises BadParameter."""
        if not regex:
            chosen = [chosen_partitions(name, "TOPIC") for name in names]
            also = partitions or ()
            return cls([each._replace(indexes=[*each.indexes, *also]) for each in chosen], False)
        for name in names:
            try:
                re.compile(name)
            except re.error as error:
                message = f"{name}: {error}"
                raise typer.BadParameter(message, param_hint="--regex") from None
        return cls([ChosenPartitions(name, partitions or ()) for name in names], True)


@dataclass(frozen=True, slots=True)
class Selection:
    """Options of every command that reads records of topics that are named as arguments."""

    regex: Regex = False
    partition: Partitions = None
    max_messages: MaxMessages = None

    def wanted(self, names: Sequence[str]) -> Wanted:
        """What is to be read. Raises BadParameter."""
        return Wanted.of(names, self.partition, regex=self.regex)


def consumer_config(reset: Reset, *, read_committed: bool) -> ConsumerConfig:
    """The properties of a consumer, and over them --read-committed. reset: auto.offset.reset where
    no property says it.
    """
    from kbroker.client.cluster import READ_COMMITTED
    from kbroker.client.consumer import ConsumerConfig

    config = properties().consumer(ConsumerConfig(auto_offset_reset=reset))
    return replace(config, isolation_level=READ_COMMITTED) if read_committed else config


def offset_range(text: str | None, *, from_beginning: bool, otherwise: OffsetRange) -> OffsetRange:
    """What --offset and --from-beginning say. Raises BadParameter."""
    if text is None:
        return OffsetRange(BEGINNING) if from_beginning else otherwise
    if from_beginning:
        raise typer.BadParameter("give --offset or --from-beginning, and not both")
    try:
        return parse_range(text, int(time.time() * 1000))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--offset") from None


async def matching_topics(client: Client, wanted: Wanted) -> list[ChosenPartitions]:
    """The topics that are named, or that a pattern matches: those of the cluster, but Kafka's
    own.
    """
    if not wanted.is_regex:
        return list(wanted.names)
    topics = (await client.metadata()).topics
    names = sorted(topic.name or "" for topic in topics if not topic.is_internal)
    return [
        ChosenPartitions(name, chosen.indexes)
        for name in names
        for chosen in wanted.names
        if re.fullmatch(chosen.topic, name)
    ]


class Bounds(NamedTuple):
    """Of one partition. stop: the offset before which reading ends, or None."""

    start: int
    stop: int | None


class RecordSource:
    """Reads partitions between two bounds. Topics that a pattern matches later are read too, from
    their beginning.
    """

    def __init__(
        self, client: Client, config: ConsumerConfig, wanted: Wanted, offsets: OffsetRange
    ) -> None:
        from kbroker.client.consumer import Consumer

        self._client = client
        self._config = config
        self._wanted = wanted
        self._offsets = offsets
        self._consumer = Consumer(client, config)
        self._stops: dict[TopicPartition, int] = {}
        self._next_look_s = 0.0

    async def open(self, *, exit_at_end: bool) -> None:
        """Look the bounds up, and read between them. exit_at_end: stop at the end as it is now, at
        the latest.
        """
        await self.start(await self.bounds(exit_at_end=exit_at_end))

    async def bounds(self, *, exit_at_end: bool) -> dict[TopicPartition, Bounds]:
        """Of each partition, in order of topic and index. Raises StartupError without one."""
        places = await self._places()
        if not places:
            raise StartupError("no topic matches")
        isolation_level = self._config.isolation_level
        limits = await partition_limits(self._client, places, isolation_level)
        starts = await resolve(
            self._client, self._offsets.start, limits, isolation_level, is_start=True
        )
        stops: Mapping[TopicPartition, int] = {}
        if self._offsets.stop is not None:
            stops = await resolve(
                self._client, self._offsets.stop, limits, isolation_level, is_start=False
            )
        if exit_at_end:
            ends = {place: each.end for place, each in limits.items()}
            stops = {place: min(stops.get(place, end), end) for place, end in ends.items()}
        return {place: Bounds(starts[place], stops.get(place)) for place in places}

    async def start(self, bounds: Mapping[TopicPartition, Bounds]) -> None:
        """Read these partitions from now on."""
        await self._consumer.assign({place: each.start for place, each in bounds.items()})
        stops = ((place, each.stop) for place, each in bounds.items())
        self._stops = {place: stop for place, stop in stops if stop is not None}
        self._next_look_s = time.monotonic() + WATCH_INTERVAL_S

    async def _places(self) -> list[TopicPartition]:
        places: set[TopicPartition] = set()
        for name, chosen in await matching_topics(self._client, self._wanted):
            known = (await self._client.topic(name)).partitions
            missing = set(chosen) - set(known)
            if missing and not self._wanted.is_regex:
                last = max(known)
                raise StartupError(f"{name} has no partition {min(missing)}, its last is {last}")
            indexes = set(chosen) & set(known) if chosen else known
            places.update(TopicPartition(name, index) for index in indexes)
        return sorted(places)

    @property
    def is_done(self) -> bool:
        """Whether every partition has reached where reading stops."""
        positions = self._consumer.positions
        return bool(self._stops) and all(
            positions[place] >= stop for place, stop in self._stops.items()
        )

    async def poll(self) -> list[ConsumedRecord]:
        """The records that came, perhaps none."""
        records = await self._consumer.poll()
        if self._stops:
            return [
                record
                for record in records
                if record.offset < self._stops[TopicPartition(record.topic, record.partition)]
            ]
        if self._wanted.is_regex and time.monotonic() >= self._next_look_s:
            await self._look_for_more()
        return records

    async def _look_for_more(self) -> None:
        self._next_look_s = time.monotonic() + WATCH_INTERVAL_S
        more = [place for place in await self._places() if place not in self._consumer.positions]
        for topic in dict.fromkeys(place.topic for place in more):
            note(f"reading {topic} too")
        await self._consumer.seek(dict.fromkeys(more, "earliest"))

    def close(self) -> None:
        """Close the connections used for fetching."""
        self._consumer.close()
