"""Prometheus' text format (version 0.0.4), written piece by piece.

Samples of one name stand together, as the format wants it, and a family of any size is written in
steps of a bounded size, so that neither the loop waits for a scrape nor memory holds all of it. A
scrape has at most so many series: what is written later loses. Which families there are is in
`collection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kbroker.metrics import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STEP_ROWS: Final = 64
"""Rows of a family in one step: some 0.1 ms."""

MAX_LABEL_CHARS: Final = 255
"""Of a label's value that a client chose. A longer one could only be cut, and then be that of
another series.
"""

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

Row = tuple[str, float]
"""Labels as `labels` makes them ("" for none), and a value."""

_ESCAPES: Final[Mapping[int, str]] = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def escaped(text: str) -> str:
    """Text of a client as the value of a label."""
    return text.translate(_ESCAPES)


def labels(**values: object) -> str:
    """Labels of a row, in the order of the arguments."""
    return ",".join(f'{name}="{escaped(str(value))}"' for name, value in values.items())


class Exposition:
    """The text of one scrape. limit: of its series. written, dropped: series so far, and those
    that were left out.
    """

    __slots__ = ("_limit", "dropped", "written")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.written = 0
        self.dropped = 0

    def counter(self, name: str, help_text: str, value: float) -> str:
        """A counter without labels. name: without `_total`."""
        return self._single(COUNTER, name + "_total", help_text, value)

    def gauge(self, name: str, help_text: str, value: float) -> str:
        """A gauge without labels."""
        return self._single(GAUGE, name, help_text, value)

    def counters(self, name: str, help_text: str, rows: Iterable[Row | None]) -> Iterator[str]:
        """A family of counters; see `gauges`. name: without `_total`."""
        return self._family(COUNTER, name + "_total", help_text, rows)

    def gauges(self, name: str, help_text: str, rows: Iterable[Row | None]) -> Iterator[str]:
        """A family of gauges in steps. rows: None for something that was looked at and has no
        value. A family without a series is not written.
        """
        return self._family(GAUGE, name, help_text, rows)

    def histograms(
        self, name: str, help_text: str, histograms: Sequence[tuple[str, Histogram]]
    ) -> Iterator[str]:
        """A family of histograms, each with its labels ("" for none), one in each step."""
        head = _head(HISTOGRAM, name, help_text)
        for label_text, histogram in histograms:
            size = len(histogram.counts) + 2
            if self._take(size):
                yield head + "".join(_histogram_lines(name, label_text, histogram))
                head = ""

    def _single(self, kind: str, name: str, help_text: str, value: float) -> str:
        return f"{_head(kind, name, help_text)}{name} {value}\n" if self._take() else ""

    def _family(
        self, kind: str, name: str, help_text: str, rows: Iterable[Row | None]
    ) -> Iterator[str]:
        head = _head(kind, name, help_text)
        lines: list[str] = []
        for number, row in enumerate(rows, 1):
            if row is not None and self._take():
                label_text, value = row
                braces = f"{{{label_text}}}" if label_text else ""
                lines.append(f"{name}{braces} {value}\n")
            if number % STEP_ROWS == 0:
                yield head + "".join(lines) if lines else ""
                head = "" if lines else head
                lines.clear()
        if lines:
            yield head + "".join(lines)

    def _take(self, series: int = 1) -> bool:
        """Whether so many more series fit."""
        if self.written + series > self._limit:
            self.dropped += series
            return False
        self.written += series
        return True


def _head(kind: str, name: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


def _histogram_lines(name: str, label_text: str, histogram: Histogram) -> Iterator[str]:
    """Prometheus counts each bucket with all smaller ones."""
    comma = "," if label_text else ""
    below = 0
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        below += count
        upper = "+Inf" if bound is None else repr(bound)
        yield f'{name}_bucket{{{label_text}{comma}le="{upper}"}} {below}\n'
    braces = f"{{{label_text}}}" if label_text else ""
    yield f"{name}_sum{braces} {histogram.total}\n"
    yield f"{name}_count{braces} {histogram.count}\n"
