"""Histograms: a value is in the first class whose bound it does not exceed."""

from __future__ import annotations

from kbroker.metrics import Histogram


def test_classes() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.count == 5
    assert histogram.total == 8.6
    assert histogram.maximum == 7.0
