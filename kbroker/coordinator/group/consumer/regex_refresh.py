"""The resolution of a consumer group's regular expressions against the topics of the cluster.

As in Kafka it follows a heartbeat, runs apart from it, and is written by itself; a heartbeat only
sees which topics an expression was last resolved to. A refresh advances by a bounded number of
characters per turn of the loop: how many topics and expressions there are is the choice of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kbroker.metadata.patterns import CHARACTERS_PER_TURN, matcher
from kbroker.protocol.errors import KafkaError

MIN_INTERVAL_MS: Final = 10_000
"""Between two refreshes of a group that has resolved expressions. As in Kafka."""
NAME_COST: Final = 16
"""What a match or an expression counts beside its characters."""


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
        """Match further names, one at least if there is one. Returns the cost."""
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
