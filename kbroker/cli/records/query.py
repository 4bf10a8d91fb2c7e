"""Records whose key, value, headers and time are as wanted: what `search` prints and `resend`
sends.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from kbroker.cli.records.offset_ranges import BEGINNING, Bound, OffsetRange, Point
from kbroker.cli.session import moment

if TYPE_CHECKING:
    from kbroker.cli.records.source import RecordSource
    from kbroker.client.consumer import ConsumedRecord

QUERY_EPILOG: Final = """
--key, --value and --header are regular expressions that match anywhere; all that are given have to
match. Times are 2026-01-31T12:00:00 (UTC), ms since 1970, or -15m, -2h, -1d for a time before now.
"""

KeyPattern = Annotated[
    str | None, typer.Option("--key", "-k", metavar="REGEX", help="What the key matches.")
]
ValuePattern = Annotated[
    str | None, typer.Option("--value", "-v", metavar="REGEX", help="What the value matches.")
]
HeaderPatterns = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME[=REGEX]", help="A header, and its value; repeatable."
    ),
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Not before this.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Before this.")]
IgnoreCase = Annotated[
    bool, typer.Option("--ignore-case", "-i", help="In keys, values and headers.")
]


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """Options of every command that reads only the records that match."""

    key: KeyPattern = None
    value: ValuePattern = None
    header: HeaderPatterns = None
    since: Since = None
    until: Until = None
    ignore_case: IgnoreCase = False

    def query(self) -> Query:
        """What they say. Raises BadParameter."""
        since_ms = None if self.since is None else moment(self.since, "--since")
        until_ms = None if self.until is None else moment(self.until, "--until")
        if since_ms is not None and until_ms is not None and since_ms > until_ms:
            raise typer.BadParameter("--until is before --since")
        return Query(
            key=_pattern(self.key, "--key", self.ignore_case),
            value=_pattern(self.value, "--value", self.ignore_case),
            headers=[_header(text, self.ignore_case) for text in self.header or ()],
            since_ms=since_ms,
            until_ms=until_ms,
        )


class Query(NamedTuple):
    """What a record has to be like; None for anything. headers: name, and pattern of the value.
    since_ms is in it, until_ms is not.
    """

    key: re.Pattern[bytes] | None = None
    value: re.Pattern[bytes] | None = None
    headers: Sequence[tuple[bytes, re.Pattern[bytes] | None]] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def matches(self, record: ConsumedRecord) -> bool:
        """Whether all of it holds. A null matches no pattern."""
        if self.since_ms is not None and record.timestamp < self.since_ms:
            return False
        if self.until_ms is not None and record.timestamp >= self.until_ms:
            return False
        return (
            _matches(self.key, record.key)
            and _matches(self.value, record.value)
            and all(
                any(name == wanted and _matches(pattern, value) for name, value in record.headers)
                for wanted, pattern in self.headers
            )
        )

    @property
    def offsets(self) -> OffsetRange:
        """What of a partition is to be read."""
        start, stop = self.since_ms, self.until_ms
        return OffsetRange(
            BEGINNING if start is None else Bound(Point.TIME, start),
            None if stop is None else Bound(Point.TIME, stop),
        )


def _matches(pattern: re.Pattern[bytes] | None, data: bytes | None) -> bool:
    return pattern is None or (data is not None and pattern.search(data) is not None)


def _pattern(text: str | None, option: str, ignore_case: bool) -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(text.encode(), re.DOTALL | (re.IGNORECASE if ignore_case else 0))
    except re.error as error:
        raise typer.BadParameter(f"{text}: {error}", param_hint=option) from None


def _header(text: str, ignore_case: bool) -> tuple[bytes, re.Pattern[bytes] | None]:
    name, equals, value = text.partition("=")
    if not name:
        raise typer.BadParameter(f"{text}: write it as name=regex", param_hint="--header")
    return name.encode(), _pattern(value if equals else None, "--header", ignore_case)


class MatchingRecords:
    """The records of a source that match, until it is done or a limit is reached.

    max_scan: how many are read at most, 0 for all; max_messages: how many are to be found, None for
    all. found, scanned: how many so far. is_whole: whether max_scan did not end it.
    """

    def __init__(
        self,
        source: RecordSource,
        query: Query,
        *,
        max_scan: int = 0,
        max_messages: int | None = None,
    ) -> None:
        self.found = self.scanned = 0
        self.is_whole = True
        self._source = source
        self._query = query
        self._max_scan = max_scan
        self._max_messages = max_messages
        self._is_done = False

    async def __aiter__(self) -> AsyncIterator[list[ConsumedRecord]]:
        """Yield those of each poll, perhaps none."""
        while not (self._is_done or self._source.is_done):
            yield self._matching(await self._source.poll())

    def _matching(self, records: Sequence[ConsumedRecord]) -> list[ConsumedRecord]:
        matching: list[ConsumedRecord] = []
        for record in records:
            if self._max_scan and self.scanned == self._max_scan:
                self.is_whole, self._is_done = False, True
                break
            self.scanned += 1
            if self._query.matches(record):
                matching.append(record)
                self.found += 1
                if self.found == self._max_messages:
                    self._is_done = True
                    break
        return matching
