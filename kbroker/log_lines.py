"""Makes log lines safe: text of clients is escaped and cut, and repeated lines are throttled.

A client chooses its client id, the names of topics, groups and members, paths, patterns and
reasons. `shown` makes any of it fit for a log line; each logger call that has such an argument
wraps it. `LineFormatter`, which `kbroker serve` installs, applies the same escapes to whole
lines and to tracebacks, so that no text begins a line of its own. No I/O, no clock.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

SHOWN_CHARS: Final = 256
"""Of one text of a client: the longest topic name, 249 characters, fits."""

LINE_CHARS: Final = 8 * 1024
"""Of one log line, or one line of a traceback."""

TRACEBACK_LINES: Final = 200

LOG_INTERVAL_MS: Final = 1000

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def shown(value: object, max_chars: int = SHOWN_CHARS) -> str:
    """The text of value for a log line: at most max_chars of it, and how many more there were;
    what is not printable (line ends, terminal escapes, lone surrogates) as Python escapes it.
    """
    text = value if isinstance(value, str) else str(value)
    left = len(text) - max_chars
    if left > 0:
        return f"{_escaped(text[:max_chars])}... ({left} more characters)"
    return _escaped(text)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


class LineFormatter(logging.Formatter):
    """One record is one line; a traceback follows it indented, its lines escaped and cut too."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shown(record.message, LINE_CHARS)
        return super().formatMessage(record)

    def formatException(self, ei: _ExcInfo) -> str:
        lines = super().formatException(ei).splitlines()
        left = len(lines) - TRACEBACK_LINES
        if left > 0:
            half = TRACEBACK_LINES // 2
            lines = [*lines[:half], f"... ({left} more lines)", *lines[-half:]]
        return "\n".join("    " + shown(line, LINE_CHARS) for line in lines)


class JsonFormatter(LineFormatter):
    """One record is one JSON object on one line: time (UTC, ISO 8601, milliseconds), level, node,
    logger, message, and exception with its traceback. Everything else than ASCII is escaped.
    """

    def __init__(self, node_id: int) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, object] = {
            "time": time,
            "level": record.levelname,
            "node": self._node_id,
            "logger": record.name,
            "message": shown(record.getMessage(), LINE_CHARS),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class LogThrottle:
    """At most `lines` lines per interval from a source that clients can trigger; the next line says
    how many were held back.
    """

    __slots__ = ("_begin_ms", "_left", "_level", "_lines", "_logger", "_withheld")

    def __init__(
        self, logger: logging.Logger, level: int = logging.WARNING, *, lines: int = 1
    ) -> None:
        self._logger = logger
        self._level = level
        self._lines = self._left = lines
        self._begin_ms: float | None = None
        self._withheld = 0

    def log(
        self,
        now_ms: float,
        message: str,
        *arguments: object,
        exc_info: bool | BaseException | None = False,
    ) -> None:
        """Log now, or count the line if this second had its lines. now_ms: any steady clock."""
        if self._begin_ms is None or now_ms - self._begin_ms >= LOG_INTERVAL_MS:
            self._begin_ms, self._left = now_ms, self._lines
        if not self._left:
            self._withheld += 1
            return
        self._left -= 1
        if self._withheld:
            message += f" (and {self._withheld} more like this)"
            self._withheld = 0
        self._logger.log(self._level, message, *arguments, exc_info=exc_info)
