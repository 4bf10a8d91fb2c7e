"""Regular expressions by which consumers subscribe and tools list: RE2, as in Kafka, so no pattern
takes long to match.

Two things would: captures, which are not computed, since 1,000 groups in 4 KB took 170 ms for each
name; and Unicode classes, of which 8,000 in 32 KB took a second to compile, so their number and the
compiled size are bounded. Kafka bounds neither.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from kbroker.protocol.errors import ErrorCode, KafkaError

MAX_UNICODE_CLASSES: Final = 50
"""Of a pattern, such as \\pL: a millisecond to compile each."""

MAX_COMPILED_BYTES: Final = 1 << 20
SHOWN_CHARACTERS: Final = 200
"""Of a pattern, and of what RE2 says of it, in the message that refuses it."""


def check_pattern(regex: str) -> None:
    """Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
    _compiled(regex)


def matcher(regex: str) -> Callable[[str], bool]:
    """Whether it matches a name as a whole. Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
    pattern = _compiled(regex)
    return lambda name: pattern.fullmatch(name) is not None


@lru_cache(maxsize=8)  # a few hundred characters may hold a megabyte
# Any: re2 comes without types
def _compiled(regex: str) -> Any:
    import re2  # type: ignore[import-untyped]  # here: a broker without such subscribers does not load it

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
