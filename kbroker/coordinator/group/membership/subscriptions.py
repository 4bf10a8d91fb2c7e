"""The subscriptions of a consumer or share group's members, once per distinct subscription.

Most members of a group have the same subscription. The data that an epoch or a target assignment
needs (the topics of all members, their ids) is computed once for each distinct subscription.
`regex_refresh` resolves regular expressions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

NO_NAMES: Final[frozenset[str]] = frozenset()

ResolvedRegexes = Mapping[str, frozenset[str]]
"""The topics that each resolved regular expression matches."""

NONE_RESOLVED: Final[ResolvedRegexes] = {}


class Subscription:
    """Topic names and a regular expression ("" for none). All members of a group with the same
    subscription share one object: equality is identity.
    """

    __slots__ = ("names", "regex")

    def __init__(self, names: frozenset[str], regex: str) -> None:
        self.names = names
        self.regex = regex

    def topics(self, resolved: ResolvedRegexes = NONE_RESOLVED) -> frozenset[str]:
        """All topic names. A regular expression that is not resolved yet matches none."""
        matched = resolved.get(self.regex, NO_NAMES)
        if not matched:
            return self.names
        return self.names | matched if self.names else matched

    def has(self, name: str, resolved: ResolvedRegexes = NONE_RESOLVED) -> bool:
        """Whether a topic is in the subscription."""
        return name in self.names or name in resolved.get(self.regex, NO_NAMES)


class Subscriptions:
    """The distinct subscriptions of a group's members."""

    __slots__ = ("_by_value", "_counts", "_of_member", "_regexes")

    def __init__(self) -> None:
        self._by_value: dict[tuple[frozenset[str], str], Subscription] = {}
        self._counts: dict[Subscription, int] = {}
        self._of_member: dict[str, Subscription] = {}
        self._regexes: dict[str, int] = {}
        """How many distinct subscriptions have each regular expression."""

    def put(self, member_id: str, names: Iterable[str], regex: str = "") -> bool:
        """A member joined or changed its subscription. Returns whether the distinct subscriptions
        changed.
        """
        subscription = self.find(names, regex)
        former = self._of_member.get(member_id)
        if former is subscription:
            return False
        is_new = subscription not in self._counts
        self._of_member[member_id] = subscription
        self._counts[subscription] = self._counts.get(subscription, 0) + 1
        if is_new:
            self._by_value[subscription.names, subscription.regex] = subscription
            if subscription.regex:
                self._regexes[subscription.regex] = self._regexes.get(subscription.regex, 0) + 1
        return (former is not None and self._drop(former)) or is_new

    def remove(self, member_id: str) -> bool:
        """A member left. Returns whether the distinct subscriptions changed."""
        former = self._of_member.pop(member_id, None)
        return former is not None and self._drop(former)

    def _drop(self, subscription: Subscription) -> bool:
        self._counts[subscription] -= 1
        if self._counts[subscription]:
            return False
        del self._counts[subscription]
        del self._by_value[subscription.names, subscription.regex]
        regex = subscription.regex
        if regex:
            self._regexes[regex] -= 1
            if not self._regexes[regex]:
                del self._regexes[regex]
        return True

    def find(self, names: Iterable[str], regex: str = "") -> Subscription:
        """The subscription to these topics; a new object if no member has it."""
        distinct = frozenset(names)
        known = self._by_value.get((distinct, regex))
        return Subscription(distinct, regex) if known is None else known

    def of(self, member_id: str) -> Subscription:
        """The subscription of a member of the group."""
        return self._of_member[member_id]

    @property
    def regexes(self) -> Collection[str]:
        """The regular expressions to which members subscribe."""
        return self._regexes.keys()

    def distinct(self) -> Collection[Subscription]:
        """The distinct subscriptions of the members."""
        return self._counts.keys()

    def without(self, member_ids: Iterable[str]) -> list[Subscription]:
        """The distinct subscriptions without these members, each of which is given once."""
        leaving: dict[Subscription, int] = {}
        for member_id in member_ids:
            subscription = self._of_member.get(member_id)
            if subscription is not None:
                leaving[subscription] = leaving.get(subscription, 0) + 1
        return [one for one, count in self._counts.items() if leaving.get(one, 0) < count]


def all_topics(
    subscriptions: Iterable[Subscription], resolved: ResolvedRegexes = NONE_RESOLVED
) -> set[str]:
    """The topic names of all these subscriptions."""
    names: set[str] = set()
    for subscription in subscriptions:
        names |= subscription.topics(resolved)
    return names
