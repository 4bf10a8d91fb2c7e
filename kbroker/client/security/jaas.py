"""The value of `sasl.jaas.config`: login modules, their control flags and options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="x";

Source: JaasConfig of Kafka's clients, which reads it with a StreamTokenizer of Java: both kinds of
quotes, Java's escapes inside them, and comments that begin with a slash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

CONTROL_FLAGS: Final = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})

_TOKEN: Final = re.compile(
    r"""(?P<skipped> [\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]* )
      | (?P<mark> [;=] )
      | "(?P<double> (?: \\. | [^"\\\r\n] )* )"
      | '(?P<single> (?: \\. | [^'\\\r\n] )* )'
      | (?P<word> [^\x00-\x20;="'/]+ )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_CONTROL: Final[Mapping[str, str]] = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}


@dataclass(frozen=True, slots=True)
class LoginModule:
    """name: the Java class. options: may hold passwords, so they are not shown."""

    name: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name})"


@dataclass(frozen=True, slots=True)
class _Token:
    """mark: `;` or `=`, else empty."""

    text: str
    mark: str = ""


def parse_jaas(text: str) -> list[LoginModule]:
    """The login modules in their order. Raises ValueError, whose message has no word of the text:
    each may be of a password that lacks its quotes.
    """
    tokens = _tokens(text)
    modules: list[LoginModule] = []
    for token in tokens:
        modules.append(_module(token, tokens, f"login module {len(modules) + 1}"))
    if not modules:
        raise ValueError("it names no login module")
    return modules


def _module(first: _Token, tokens: Iterator[_Token], what: str) -> LoginModule:
    """what: names it in errors."""
    if first.mark:
        raise ValueError(f"{what} is expected before {first.mark!r}")
    flag = next(tokens, None)
    if flag is None or flag.text.upper() not in CONTROL_FLAGS:
        raise ValueError(f"{what} is not followed by a control flag, such as required")
    options: dict[str, str] = {}
    for token in tokens:
        if token.mark == ";":
            return LoginModule(first.text, options)
        equals, value = next(tokens, None), next(tokens, None)
        if token.mark or equals is None or equals.mark != "=" or value is None or value.mark:
            raise ValueError(f'option {len(options) + 1} of {what} is not written as name="value"')
        options[token.text] = value.text
    raise ValueError(f"{what} does not end with a semicolon")


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("a quote is not closed")
        position = match.end()
        if match["skipped"] is not None:
            continue
        if match["mark"] is not None:
            yield _Token("", match["mark"])
        elif match["word"] is not None:
            yield _Token(match["word"])
        else:
            quoted = match["double"] if match["double"] is not None else match["single"]
            yield _Token(_ESCAPE.sub(_unescaped, quoted))


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _CONTROL.get(escaped, escaped)
