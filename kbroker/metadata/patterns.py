"""Regular expressions for subscriptions of consumers and filters of tools: RE2, as in Kafka, so the
time to match a name grows with its length only.

Some costs have limits here, which Kafka does not have. Captures are not computed: 1,000 groups in 4
KB took 170 ms for each name. The number of Unicode classes is limited, since 8,000 in 32 KB took a
second to compile. The length is limited, since the compile time grows with its square: 16 KB of
"a?" took 0.17 s. Names that are too long for a topic never match: if the states of a pattern exceed
its memory limit, each character takes microseconds, and 30,000 took 0.1 s.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from kbroker.protocol.errors import ErrorCode, KafkaError

MAX_PATTERN_CHARACTERS: Final = 4000
"""The maximum length of a pattern: some 20 ms to compile at worst."""

MAX_UNICODE_CLASSES: Final = 25
"""The maximum number of Unicode classes in a pattern, such as \\pL: a millisecond to compile
each.
"""

MAX_NAME_CHARACTERS: Final = 4096
"""The maximum length of a name. Topic names have at most 249 characters; transactional ids may have
32,767.
"""

CHARACTERS_PER_TURN: Final = 8192
"""How many characters of names are matched in one turn of the loop: some 25 ms with the worst
pattern.
"""

MAX_COMPILED_BYTES: Final = 1 << 20
SHOWN_CHARACTERS: Final = 200
"""The maximum length of a pattern, and of RE2's message, in an error message."""


def check_pattern(regex: str) -> None:
    """Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
    _compiled(regex)


def matcher(regex: str) -> Callable[[str], bool]:
    """A function that tells whether the pattern matches a whole name of up to
    `MAX_NAME_CHARACTERS`. Raises KafkaError(INVALID_REGULAR_EXPRESSION).
    """
    pattern = _compiled(regex)
    return lambda name: len(name) <= MAX_NAME_CHARACTERS and pattern.fullmatch(name) is not None


@lru_cache(maxsize=8)  # a few hundred characters may take a megabyte
# Any: re2 comes without types
def _compiled(regex: str) -> Any:
    import re2  # type: ignore[import-untyped]  # here: only loaded when it is used

    if len(regex) > MAX_PATTERN_CHARACTERS:
        raise _invalid(regex, f"it is longer than {MAX_PATTERN_CHARACTERS} characters")
    if regex.count("\\p") + regex.count("\\P") > MAX_UNICODE_CLASSES:
        raise _invalid(regex, f"more than {MAX_UNICODE_CLASSES} Unicode classes")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_COMPILED_BYTES
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise _invalid(regex, text) from None


def _invalid(regex: str, reason: str) -> KafkaError:
    pattern, why = (
        text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
        for text in (regex, reason)
    )
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r} is no regular expression of RE2: {why}"
    )
