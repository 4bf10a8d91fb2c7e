"""The resolution of a consumer group's regular expressions against the topics of the cluster.

As in Kafka a heartbeat triggers the resolution, which runs and is written separately; heartbeats
use the topics to which an expression was last resolved. A refresh processes a limited number of
characters per turn of the loop, since clients choose the number of topics and expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kbroker.metadata.patterns import CHARACTERS_PER_TURN, matcher
from kbroker.protocol.errors import KafkaError

MIN_INTERVAL_MS: Final = 10_000
"""The minimum time between two refreshes of a group whose expressions are resolved. As in Kafka."""
NAME_COST: Final = 16
"""The cost of a match or an expression besides its characters."""


class RegexRefresh:
    """One refresh of one group. topics: the cluster's topics at its start; offset: that of their
    metadata; wall_ms: the start time.
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
        """The sorted topics of each resolved expression."""
        self.refused: list[KafkaError] = []
        """Errors of expressions that RE2 rejects, such as one that another implementation wrote.
        They match no topic; members with other subscriptions are not affected.
        """
        self._names = sorted(topics)
        self._regexes = sorted(regexes, reverse=True)
        self._matches: Callable[[str], bool] | None = None
        self._found: list[str] = []
        self._position = 0

    def advance(self, max_cost: int = CHARACTERS_PER_TURN) -> bool:
        """Compile expressions and match names until the turn has cost max_cost, in characters.
        Returns whether all expressions are resolved.
        """
        left = max_cost
        while self._regexes and left > 0:
            regex = self._regexes[-1]
            if self._matches is None:
                left -= len(regex) + NAME_COST
                if not self._start(regex):
                    continue
            else:
                left -= self._match(self._matches, left)
            if self._position >= len(self._names):
                self._finish(regex)
        return not self._regexes

    def _match(self, matches: Callable[[str], bool], max_cost: int) -> int:
        """Match further topic names, at least one if there is one. Returns the cost."""
        names, position, cost = self._names, self._position, 0
        while position < len(names) and cost < max_cost:
            name = names[position]
            if matches(name):
                self._found.append(name)
            cost += len(name) + NAME_COST
            position += 1
        self._position = position
        return cost

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
