"""The resolution of a consumer group's regular expressions against the topics of the cluster.

As in Kafka it follows a heartbeat, runs apart from it, and is written by itself; a heartbeat only
sees which topics an expression was last resolved to. A refresh advances by a bounded number of
matches per turn of the loop: how many topics and expressions there are is the choice of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kbroker.metadata.patterns import matcher
from kbroker.protocol.errors import KafkaError

MIN_INTERVAL_MS: Final = 10_000
"""Between two refreshes of a group that has resolved expressions. As in Kafka."""
MATCHES_PER_TURN: Final = 500
"""Topic names that are matched in one turn."""


class RegexRefresh:
    """One refresh of one group. topics: the cluster's at its start; offset: of that metadata;
    wall_ms: of the start.
    """

    __slots__ = (
        "_found",
        "_matches",
        "_names",
        "_position",
        "_regexes",
        "offset",
        "refused",
        "resolved",
        "topics",
        "wall_ms",
    )

    def __init__(
        self, regexes: Iterable[str], topics: Mapping[str, object], *, offset: int, wall_ms: int
    ) -> None:
        self.topics = topics
        self.offset = offset
        self.wall_ms = wall_ms
        self.resolved: dict[str, list[str]] = {}
        """The topics of each expression that is done, sorted."""
        self.refused: list[KafkaError] = []
        """Of expressions that RE2 does not take, such as one that another implementation wrote.
        They match no topic; members that subscribe otherwise are not concerned.
        """
        self._names = sorted(topics)
        self._regexes = sorted(regexes, reverse=True)
        self._matches: Callable[[str], bool] | None = None
        self._found: list[str] = []
        self._position = 0

    def advance(self, max_matches: int = MATCHES_PER_TURN) -> bool:
        """Match at most so many names. Returns whether all expressions are resolved."""
        left = max_matches
        while self._regexes and left > 0:
            regex = self._regexes[-1]
            if self._matches is None and not self._start(regex):
                left -= 1
                continue
            names = self._names[self._position : self._position + left]
            self._found += filter(self._matches, names)
            self._position += len(names)
            left -= len(names) or 1
            if self._position >= len(self._names):
                self._finish(regex)
        return not self._regexes

    def _start(self, regex: str) -> bool:
        try:
            self._matches = matcher(regex)
        except KafkaError as error:
            self.refused.append(error)
            self._finish(regex)
            return False
        return True

    def _finish(self, regex: str) -> None:
        self.resolved[regex] = self._found
        self._regexes.pop()
        self._matches, self._found, self._position = None, [], 0
