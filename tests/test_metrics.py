"""Histograms: a value is in the first class whose bound it does not exceed."""

from __future__ import annotations

from kbroker.metrics import Histogram, TopicTraffic


def test_classes() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.count == 5
    assert histogram.total == 8.6
    assert histogram.maximum == 7.0


def test_all_counts_of_traffic_are_added() -> None:
    one, other = TopicTraffic(), TopicTraffic()
    for number, name in enumerate(TopicTraffic.__slots__):
        assert getattr(one, name) == 0
        setattr(one, name, number)
        setattr(other, name, 100 + number)
    one.add(other)
    assert [getattr(one, name) for name in TopicTraffic.__slots__] == [
        100 + 2 * number for number in range(len(TopicTraffic.__slots__))
    ]
