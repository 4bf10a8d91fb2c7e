"""Regular expressions by which consumers subscribe and tools list: RE2, as in Kafka, so the time to
match a name grows with its length only.

What would take long nevertheless is bounded here, Kafka bounds nothing of it. Captures are not
computed: 1,000 groups in 4 KB took 170 ms for each name. Unicode classes are few, since 8,000 in
32 KB took a second to compile. The length is bounded, since time to compile grows with its square:
16 KB of "a?" took 0.17 s. Names that no topic can have match nothing: where the states of a pattern
do not fit into the memory it may have, each character takes microseconds, and 30,000 took 0.1 s.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from kbroker.protocol.errors import ErrorCode, KafkaError

MAX_PATTERN_CHARACTERS: Final = 4000
"""Some 20 ms to compile at worst."""

MAX_UNICODE_CLASSES: Final = 25
"""Of a pattern, such as \\pL: a millisecond to compile each."""

MAX_NAME_CHARACTERS: Final = 4096
"""Of a name that is matched. Topics have 249 at most; transactional ids may have 32,767."""

CHARACTERS_PER_TURN: Final = 8192
"""Of names that are matched in one turn of the loop: some 25 ms with the worst pattern."""

MAX_COMPILED_BYTES: Final = 1 << 20
SHOWN_CHARACTERS: Final = 200
"""Of a pattern, and of what RE2 says of it, in the message that refuses it."""


def check_pattern(regex: str) -> None:
    """Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
    _compiled(regex)


def matcher(regex: str) -> Callable[[str], bool]:
    """Whether it matches a name as a whole, which may have up to `MAX_NAME_CHARACTERS`. Raises
    KafkaError(INVALID_REGULAR_EXPRESSION).
    """
    pattern = _compiled(regex)
    return lambda name: len(name) <= MAX_NAME_CHARACTERS and pattern.fullmatch(name) is not None


@lru_cache(maxsize=8)  # a few hundred characters may hold a megabyte
# Any: re2 comes without types
def _compiled(regex: str) -> Any:
    import re2  # type: ignore[import-untyped]  # here: a broker without such subscribers does not load it

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
