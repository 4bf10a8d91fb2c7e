"""Regular expressions by which consumers subscribe and tools list: RE2, as in Kafka, so no pattern
takes long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kbroker.protocol.errors import ErrorCode, KafkaError


def check_pattern(regex: str) -> None:
    """Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
    _compiled(regex)


def matcher(regex: str) -> Callable[[str], bool]:
    """Whether it matches a name as a whole. Raises KafkaError(INVALID_REGULAR_EXPRESSION)."""
    pattern = _compiled(regex)
    return lambda name: pattern.fullmatch(name) is not None


@lru_cache(maxsize=8)  # a few hundred characters may hold a megabyte, RE2 lets a pattern have 8
# Any: re2 comes without types
def _compiled(regex: str) -> Any:
    import re2  # type: ignore[import-untyped]  # here: a broker without such subscribers does not load it

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{regex!r} is no regular expression of RE2: {text}",
        ) from None
