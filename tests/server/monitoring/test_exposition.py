"""Prometheus' text format: read back by its own parser, bounded in steps and in series."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kbroker.metrics import Histogram
from kbroker.server.monitoring.exposition import STEP_ROWS, Exposition, Row, labels

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_single_values() -> None:
    out = Exposition(10)
    text = out.counter("a_b", "Of a", 3) + out.gauge("c", "Of c", 0.25)
    assert text.splitlines() == [
        "# HELP a_b_total Of a",
        "# TYPE a_b_total counter",
        "a_b_total 3",
        "# HELP c Of c",
        "# TYPE c gauge",
        "c 0.25",
    ]
    assert samples(text) == {("a_b_total", ()): 3, ("c", ()): 0.25}


@pytest.mark.parametrize(
    "value", ['"', "\\", "\n", 'a"\\\nb', "ü€😀", "", "a,b={}", "\\n", "a\r\nb"]
)
def test_any_text_may_be_a_label(value: str) -> None:
    text = "".join(Exposition(10).gauges("g", "Help", [(labels(name=value, other="x"), 1)]))
    assert samples(text) == {("g", (("name", value), ("other", "x"))): 1}
    assert text.count("\n") == 3, "line ends are escaped"


def test_a_row_may_have_no_labels() -> None:
    text = "".join(Exposition(10).counters("c", "Help", [("", 5), (labels(topic="t"), 2)]))
    assert samples(text) == {("c_total", ()): 5, ("c_total", (("topic", "t"),)): 2}
    assert "{}" not in text


def test_a_family_without_series_is_not_written() -> None:
    out = Exposition(10)
    assert "".join(out.gauges("g", "Help", [])) == ""
    assert "".join(out.gauges("g", "Help", [None] * 1000)) == ""
    assert (out.written, out.dropped) == (0, 0)


@pytest.mark.parametrize("every", [1, 7, STEP_ROWS + 1])
def test_a_large_family_comes_in_steps(every: int) -> None:
    """every: so many items have one value; the others are looked at for nothing."""
    looked = 0

    def rows() -> Iterator[Row | None]:
        nonlocal looked
        for number in range(1000):
            looked += 1
            yield None if number % every else (labels(number=number), number)

    pieces = []
    before = 0
    for piece in Exposition(2000).gauges("g", "Help", rows()):
        assert looked - before <= STEP_ROWS
        before = looked
        pieces.append(piece)
    text = "".join(pieces)
    assert text.count("# TYPE") == 1
    assert samples(text) == {
        ("g", (("number", str(number)),)): number for number in range(0, 1000, every)
    }


def test_histograms() -> None:
    first, second = Histogram((0.1, 1.0)), Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        first.observe(value)
    found = [("", first), (labels(request="Fetch"), second)]
    text = "".join(Exposition(100).histograms("h", "Help", found))
    read = samples(text)
    assert read[("h_bucket", (("le", "0.1"),))] == 2
    assert read[("h_bucket", (("le", "1.0"),))] == 3
    assert read[("h_bucket", (("le", "+Inf"),))] == read[("h_count", ())] == 4
    assert read[("h_sum", ())] == 7.65
    assert read[("h_bucket", (("le", "+Inf"), ("request", "Fetch")))] == 0
    assert text.count("# TYPE") == 1


def test_beyond_the_limit_nothing_is_written() -> None:
    out = Exposition(7)
    text = out.gauge("a", "Help", 1)
    rows = [(labels(number=number), number) for number in range(10)]
    text += "".join(out.gauges("b", "Help", rows[:3]))
    text += "".join(out.histograms("h", "Help", [("", Histogram((0.1,)))]))  # 4 series
    assert (out.written, out.dropped) == (4, 4)
    text += "".join(out.gauges("c", "Help", rows))
    text += out.counter("d", "Help", 1)
    assert (out.written, out.dropped) == (7, 12)
    assert len(samples(text)) == 7
    assert "# HELP d" not in text and "# HELP h" not in text
