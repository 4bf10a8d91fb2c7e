"""As much of PromQL's grammar as rules and dashboards use: which series an expression reads.

A parser of the whole grammar but for subqueries, `@` and histograms' own literals. What it cannot
read is a SyntaxError, so that an expression is either understood or a failed test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

TOKEN = re.compile(
    r"(?P<space>\s+|#[^\n]*)"
    r"|(?P<duration>\d+(ms|[smhdwy])(\d+(ms|[smhdwy]))*)"
    r"|(?P<number>0x[0-9a-fA-F]+|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)"
    r"|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'|(?P<string>"([^"\\\n]|\\.)*"|\'([^\'\\\n]|\\.)*\')'
    r"|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){}\[\],=<>])"
)
AGGREGATIONS = {
    "sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk",
    "topk", "quantile",
}  # fmt: skip
FUNCTIONS = {
    "abs": 1, "absent": 1, "ceil": 1, "changes": 1, "clamp_max": 2, "clamp_min": 2, "delta": 1,
    "deriv": 1, "floor": 1, "histogram_quantile": 2, "increase": 1, "irate": 1, "label_replace": 5,
    "max_over_time": 1, "min_over_time": 1, "rate": 1, "resets": 1, "round": 1, "scalar": 1,
    "sort": 1, "sort_desc": 1, "time": 0, "vector": 1,
}  # fmt: skip
RANGE_FUNCTIONS = {
    "changes", "delta", "deriv", "increase", "irate", "max_over_time", "min_over_time", "rate",
    "resets",
}  # fmt: skip
PRECEDENCE = (
    {"or"},
    {"and", "unless"},
    {"==", "!=", "<=", "<", ">=", ">"},
    {"+", "-"},
    {"*", "/", "%"},
    {"^"},
)
KEYWORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool", "offset"}


class Matcher(NamedTuple):
    """`label="value"`, with the operator between them."""

    label: str
    operator: str
    value: str

    def takes(self, value: str) -> bool:
        """value: of a series, "" without the label."""
        is_equal = self.operator in ("=", "!=")
        found = value == self.value if is_equal else bool(re.fullmatch(self.value, value))
        return found is not self.operator.startswith("!")


class Selector(NamedTuple):
    """A selector of series. labels: those that the expression around it groups by or joins on,
    from the inside out until an aggregation leaves fewer.
    """

    name: str
    matchers: tuple[Matcher, ...]
    labels: frozenset[str]


class _Value(NamedTuple):
    """What a part of an expression reads, and whether it is a range."""

    selectors: list[Selector]
    is_range: bool = False


def selectors(text: str) -> list[Selector]:
    """Of a whole expression. Raises SyntaxError."""
    parser = _Parser(text)
    value = parser.binary(0)
    if parser.word is not None:
        raise parser.error("an end")
    return value.selectors


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise SyntaxError(f"{text[position:]!r} in {text!r}")
        position = match.end()
        if match.lastgroup != "space":
            kind = next(k for k, v in match.groupdict().items() if v is not None)
            if kind != "space":
                yield kind, match[0]


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    @property
    def kind(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    @property
    def word(self) -> str | None:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else None

    def error(self, wanted: str) -> SyntaxError:
        return SyntaxError(f"{wanted} in place of {self.word!r} in {self._text!r}")

    def take(self, *words: str) -> str:
        word = self.word
        if word is None or word not in words:
            raise self.error(" or ".join(words))
        self._at += 1
        return word

    def take_kind(self, kind: str) -> str:
        word = self.word
        if word is None or self.kind != kind:
            raise self.error(f"a {kind}")
        self._at += 1
        return word

    def has(self, *words: str) -> bool:
        if self.word in words:
            self._at += 1
            return True
        return False

    def binary(self, level: int) -> _Value:
        if level == len(PRECEDENCE):
            return self.unary()
        left = self.binary(level + 1)
        while self.word in PRECEDENCE[level]:
            operator = self.take(*PRECEDENCE[level])
            if self.has("bool") and operator not in PRECEDENCE[2]:
                raise self.error("a comparison before bool")
            joined: frozenset[str] = frozenset()
            if self.word in ("on", "ignoring"):
                is_on = self.take("on", "ignoring") == "on"
                joined = frozenset(self.labels()) if is_on else joined
                if self.has("group_left", "group_right") and self.word == "(":
                    self.labels()
            right = self.binary(level + 1)
            if left.is_range or right.is_range:
                raise self.error("an instant vector")
            both = [*left.selectors, *right.selectors]
            left = _Value([_with(each, joined) for each in both])
        return left

    def unary(self) -> _Value:
        if self.has("-", "+"):
            return self.unary()
        value = self.primary()
        if self.has("["):
            self.take_kind("duration")
            self.take("]")
            if value.is_range or len(value.selectors) != 1:
                raise self.error("a selector before a range")
            value = _Value(value.selectors, is_range=True)
        if self.has("offset"):
            self.take_kind("duration")
        return value

    def primary(self) -> _Value:
        if self.has("("):
            value = self.binary(0)
            self.take(")")
            return value
        if self.kind in ("number", "string"):
            self._at += 1
            return _Value([])
        name = self.take_kind("name")
        if name in KEYWORDS:
            raise self.error("a metric")
        if name in AGGREGATIONS:
            return self.aggregation()
        if self.word == "(":
            return self.call(name)
        return _Value([Selector(name, self.matchers(), frozenset())])

    def aggregation(self) -> _Value:
        labels: list[str] | None = None
        if self.has("by"):
            labels = self.labels()
        arguments = self.arguments()
        if labels is None and self.has("by"):
            labels = self.labels()
        if any(each.is_range for each in arguments):
            raise self.error("an instant vector")
        used = frozenset(labels or ())
        return _Value([_with(each, used) for value in arguments for each in value.selectors])

    def call(self, name: str) -> _Value:
        if name not in FUNCTIONS:
            raise SyntaxError(f"no function {name} in {self._text!r}")
        arguments = self.arguments()
        if len(arguments) != FUNCTIONS[name]:
            raise SyntaxError(f"{name} of {len(arguments)} arguments in {self._text!r}")
        if any(each.is_range for each in arguments) is not (name in RANGE_FUNCTIONS):
            raise SyntaxError(f"{name} of the wrong kind of vector in {self._text!r}")
        found = [each for value in arguments for each in value.selectors]
        if name == "histogram_quantile":
            found = [_with(each, frozenset({"le"})) for each in found]
        return _Value(found)

    def arguments(self) -> list[_Value]:
        self.take("(")
        found: list[_Value] = []
        while not self.has(")"):
            found.append(self.binary(0))
            if self.word != ")":
                self.take(",")
        return found

    def labels(self) -> list[str]:
        self.take("(")
        found: list[str] = []
        while not self.has(")"):
            found.append(self.take_kind("name"))
            if self.word != ")":
                self.take(",")
        return found

    def matchers(self) -> tuple[Matcher, ...]:
        found: list[Matcher] = []
        if self.has("{"):
            while not self.has("}"):
                label = self.take_kind("name")
                operator = self.take("=", "!=", "=~", "!~")
                found.append(Matcher(label, operator, self.take_kind("string")[1:-1]))
                if self.word != "}":
                    self.take(",")
        return tuple(found)


def _with(selector: Selector, labels: frozenset[str]) -> Selector:
    return selector._replace(labels=selector.labels | labels)
