"""Values that clients pushed, as series."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.broker.telemetry.telemetry_series import MAX_SERIES, TelemetrySeries, series_points
from kbroker.model import Uuid
from kbroker.protocol.otlp import MetricPoint

ONE, TWO = bytes(15) + b"\x64", bytes(15) + b"\x65"


def values(series: TelemetrySeries) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, samples in series.slices(1):
        found.setdefault(name, []).extend(sample.value for sample in samples)
    return found


def point(name: str, value: float, *, is_delta: bool = False, **labels: str) -> MetricPoint:
    return MetricPoint(name, tuple(labels.items()), value, is_delta)


def take(
    series: TelemetrySeries, instance_id: Uuid, client_id: str | None, points: Sequence[MetricPoint]
) -> None:
    series.take(instance_id, client_id, *series_points(points))


def test_deltas_add_up_and_other_values_replace() -> None:
    series = TelemetrySeries()
    for _ in range(2):
        take(series, ONE, "c", [point("a", 3.0, is_delta=True), point("b", 4.0)])
    assert values(series) == {"client_a": [6.0], "client_b": [4.0]}


def test_series_go_with_their_client() -> None:
    series = TelemetrySeries()
    take(series, ONE, "c", [point("a", 1.0, topic="t"), point("a", 2.0, topic="u")])
    take(series, TWO, None, [point("a", 3.0)])
    series.forget(ONE)
    assert values(series) == {"client_a": [3.0]}
    series.forget(TWO)
    series.forget(TWO)
    assert values(series) == {}


def test_series_and_names_are_bounded() -> None:
    series = TelemetrySeries()
    take(series, ONE, "c", [point("a", 1.0, n=str(number)) for number in range(MAX_SERIES + 3)])
    assert series.dropped == 3
    take(series, TWO, "c", [point("b" * 300, 1.0), point("", 1.0), point("c", 1.0, x="y" * 300)])
    take(series, TWO, "c", [MetricPoint("c", (("1x", "y"),), 1.0, False)])
    assert series.dropped == 7
    assert len(values(series)["client_a"]) == MAX_SERIES
    series.forget(ONE)
    take(series, TWO, "c", [point("d", 1.0)])
    assert values(series) == {"client_d": [1.0]}
